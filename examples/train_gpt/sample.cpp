#include "sample.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>

namespace train_gpt {

std::string sample(at::Tensor prompt, const std::function<at::Tensor(const at::Tensor&)>& next_logits,
                   const SampleOptions& options) {
  constexpr std::int64_t byte_values = 256;  // a vocabulary may have more rows than bytes have values
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  std::string text;
  for (std::int64_t i = 0; i < options.bytes; ++i) {
    const at::Tensor logits = next_logits(prompt).narrow(0, 0, byte_values).to(at::kDouble);
    const at::Tensor next =
        at::multinomial(at::softmax(logits.div(options.temperature), 0), 1, false, generator);
    const auto byte = static_cast<char>(next.item<std::int64_t>());
    text += (byte >= ' ' && byte <= '~') || byte == '\n' ? byte : '?';
    // A window of constant length: the model has positions for no more.
    prompt = at::cat({prompt.narrow(1, 1, prompt.size(1) - 1), next.unsqueeze(0)}, 1);
  }
  return text;
}

}  // namespace train_gpt
