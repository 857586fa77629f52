// What a training job is asked to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace train_gpt {

struct TrainOptions {
  std::string plan;    // plan file, for the job on ranks
  bool plain = false;  // or one process of plain LibTorch
  std::string text;    // the file to learn
  std::string log;     // JSON lines; empty: none
  std::string save;    // the trained parameters; empty: none

  std::int64_t steps = 300;
  std::int64_t batch = 16;      // of all ranks together
  std::int64_t accumulate = 1;  // micro-batches a step
  std::int64_t sequence = 64;
  double lr = 1.5e-3;
  double clip = 1.0;  // gradient norm
  std::int64_t seed = 1;

  std::int64_t hidden = 128;
  std::int64_t layers = 2;
  std::int64_t heads = 4;
  std::int64_t vocabulary = 256;
  double dropout = 0;
  bool attention_bias = false;
  std::string dtype = "float32";  // or "float64"

  std::int64_t sample = 200;  // bytes of text to write at the end
  int threads = 1;            // intra-operator threads of this process

  std::int64_t timeout = 100;  // seconds that a rank waits for the others
  std::string backend = "auto";  // of the ranks

  bool collect_parameters = false;  // whether the result holds the trained parameters, whole, on every rank
};

// Reads the command line. Returns the exit code when the program is to end at once: 0 after --help, else an error that
// has been told on stderr.
std::optional<int> read_options(int argc, char** argv, TrainOptions& options);

}  // namespace train_gpt
