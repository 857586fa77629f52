#include "options.h"

#include <CLI/CLI.hpp>

namespace train_gpt {
namespace {

// What one option alone cannot say. Throws CLI::ValidationError.
void check(const TrainOptions& options) {
  if (options.plain == !options.plan.empty()) {
    throw CLI::ValidationError("state either --plan FILE or --plain");
  }
  if (options.hidden % options.heads != 0) {
    throw CLI::ValidationError("--hidden must be a multiple of --heads");
  }
  if (options.accumulate > options.batch) {
    throw CLI::ValidationError("--accumulate must not exceed --batch");
  }
}

}  // namespace

std::optional<int> read_options(int argc, char** argv, TrainOptions& options) {
  CLI::App app("Trains a byte-level GPT on a text: in one process, or on the ranks of a launcher by a plan.");
  app.option_defaults()->always_capture_default();
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1} << 31);

  app.add_option("--plan", options.plan, "How to split the model over the ranks (docs/plan-format.md)")
      ->check(CLI::ExistingFile);
  app.add_flag("--plain", options.plain, "The same job in one process, without a plan");
  app.add_option("--text", options.text, "The text to learn")->required()->check(CLI::ExistingFile);
  app.add_option("--log", options.log, "Write one JSON object a step to this file");
  app.add_option("--save", options.save, "Write the trained parameters to this file, for torch::pickle_load or torch.load");

  app.add_option("--steps", options.steps, "Optimizer steps")->check(positive);
  app.add_option("--batch", options.batch, "Sequences a step, of all ranks together")->check(positive);
  app.add_option("--accumulate", options.accumulate, "Micro-batches that a step's batch is split into")
      ->check(positive);
  app.add_option("--sequence", options.sequence, "Bytes a sequence")->check(positive);
  app.add_option("--lr", options.lr, "Learning rate of AdamW")->check(CLI::PositiveNumber);
  app.add_option("--clip", options.clip, "Largest gradient norm")->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "Of the weights, the batches and the sampled text")
      ->check(CLI::NonNegativeNumber);

  app.add_option("--hidden", options.hidden, "Width of the model")->check(positive);
  app.add_option("--layers", options.layers, "Blocks")->check(positive);
  app.add_option("--heads", options.heads, "Attention heads")->check(positive);
  app.add_option("--vocabulary", options.vocabulary, "Rows of the embedding; bytes need 256")
      ->check(CLI::Range(std::int64_t{256}, std::int64_t{1} << 24));
  app.add_option("--dropout", options.dropout, "Dropped share of activations")->check(CLI::Range(0.0, 0.99));
  app.add_flag("--attention-bias", options.attention_bias, "Attention projections with bias");
  app.add_option("--dtype", options.dtype, "Of the parameters")->check(CLI::IsMember({"float32", "float64"}));

  app.add_option("--sample", options.sample, "Bytes of text to sample at the end")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--threads", options.threads, "Threads of an operator")->check(CLI::Range(1, 1024));
  app.add_option("--backend", options.backend, "Of the ranks: what suits them, or one by name")
      ->check(CLI::IsMember({"auto", "shared_memory", "gloo", "nccl"}));
  app.add_option("--timeout", options.timeout, "Seconds that a rank waits for the others")->check(positive);
  try {
    app.parse(argc, argv);
    check(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return std::nullopt;
}

}  // namespace train_gpt
