#include "data.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <vector>

namespace train_gpt {
namespace {

void check_length(std::int64_t size, std::int64_t needed) {
  if (size >= needed) return;
  throw std::runtime_error("the text has " + std::to_string(size) +
                           " bytes, but a sequence and the byte after it need " + std::to_string(needed));
}

}  // namespace

Text::Text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read the text " + path);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  bytes_ = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(bytes_.mutable_data_ptr<std::uint8_t>()));
}

Batch Text::batch(std::int64_t batch, std::int64_t sequence, std::int64_t seed, std::int64_t step) const {
  check_length(size(), sequence + 1);
  // The standard fixes the numbers of seed_seq and mt19937_64, not those of its distributions.
  std::seed_seq sequence_of_seeds{seed, step};
  std::mt19937_64 random(sequence_of_seeds);
  const auto starts = static_cast<std::uint64_t>(size() - sequence);
  std::vector<at::Tensor> inputs, targets;
  for (std::int64_t i = 0; i < batch; ++i) {
    const auto start = static_cast<std::int64_t>(random() % starts);
    inputs.push_back(bytes_.narrow(0, start, sequence));
    targets.push_back(bytes_.narrow(0, start + 1, sequence));
  }
  return {at::stack(inputs).to(at::kLong), at::stack(targets).to(at::kLong)};
}

at::Tensor Text::opening(std::int64_t length) const {
  check_length(size(), length + 1);
  return bytes_.narrow(0, 0, length).to(at::kLong).unsqueeze(0);
}

}  // namespace train_gpt
