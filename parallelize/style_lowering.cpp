#include "parallelize/style_lowering.h"

namespace dtensor::detail {
namespace {

using Wished = std::vector<WishedPlacement>;

Wished on(const std::vector<int>& mesh_dims, const std::optional<Placement>& placement) {
  Wished wished;
  if (placement)
    for (const int mesh_dim : mesh_dims) wished.push_back({mesh_dim, *placement});
  return wished;
}

WishFamily family_of(ModuleKind module) {
  return module == ModuleKind::embedding ? WishFamily::embedding
         : module == ModuleKind::norm    ? WishFamily::norm
                                         : WishFamily::matmul;
}

// A style of parameters that stay whole: the wish moves what the plan states and nothing else.
LoweredStyle whole(ModuleKind module, const Wished& input, const Wished& output) {
  LoweredStyle lowered;
  const bool reachable =
      module == ModuleKind::linear || module == ModuleKind::embedding || module == ModuleKind::norm;
  if (reachable && !(input.empty() && output.empty()))
    lowered.wish = Wish{family_of(module), input, output, false};
  return lowered;
}

}  // namespace

bool suits(StyleKind style, ModuleKind module) {
  switch (style) {
    case StyleKind::colwise:
    case StyleKind::rowwise:
      return module == ModuleKind::linear || module == ModuleKind::embedding;
    case StyleKind::sequence_parallel:
      return module == ModuleKind::norm || module == ModuleKind::no_parameters;
    case StyleKind::packed_colwise:
    case StyleKind::packed_rowwise:
      return module == ModuleKind::linear;
    case StyleKind::embedding_rowwise:
    case StyleKind::embedding_colwise:
      return module == ModuleKind::embedding;
    case StyleKind::replicate:
    case StyleKind::prepare_input:
    case StyleKind::prepare_output:
    case StyleKind::prepare_input_output:
    case StyleKind::custom:
      return true;
  }
  return false;
}

const char* suited_modules(StyleKind style) {
  switch (style) {
    case StyleKind::colwise:
    case StyleKind::rowwise:
      return "it suits Linear and Embedding";
    case StyleKind::sequence_parallel:
      return "it suits norms and modules without parameters";
    case StyleKind::packed_colwise:
    case StyleKind::packed_rowwise:
      return "it suits Linear";
    case StyleKind::embedding_rowwise:
    case StyleKind::embedding_colwise:
      return "it suits Embedding";
    default:
      return "it suits all modules";
  }
}

bool cuts(StyleKind style) {
  switch (style) {
    case StyleKind::colwise:
    case StyleKind::rowwise:
    case StyleKind::packed_colwise:
    case StyleKind::packed_rowwise:
    case StyleKind::embedding_rowwise:
    case StyleKind::embedding_colwise:
      return true;
    default:
      return false;
  }
}

std::vector<std::int64_t> packed_parts(const Style& style, std::int64_t features) {
  if (!style.parts.empty()) return style.parts;
  return {features / 2, features - features / 2};
}

LoweredStyle lower_style(const Style& style, ModuleKind module, const std::vector<std::int64_t>& parts,
                         const std::vector<int>& tp) {
  const Wished input_whole = on(tp, Replicate());
  const auto output = [&](std::optional<Placement> standard) {
    return on(tp, style.output ? style.output : standard);
  };
  switch (style.kind) {
    case StyleKind::colwise:
    case StyleKind::embedding_colwise:
      if (module == ModuleKind::embedding)
        return {Shard(1), Replicate(), Wish{WishFamily::embedding, input_whole, output({}), false}};
      return {Shard(0), Shard(0), Wish{WishFamily::matmul, input_whole, output({}), true}};
    case StyleKind::rowwise:
    case StyleKind::embedding_rowwise:
      if (module == ModuleKind::embedding)
        return {Shard(0), Replicate(), Wish{WishFamily::embedding, input_whole, output(Replicate()), false}};
      return {Shard(1), Replicate(), Wish{WishFamily::matmul, on(tp, Shard(-1)), output(Replicate()), false}};
    case StyleKind::packed_colwise:
      return {Interleaved(0, parts), Interleaved(0, parts),
              Wish{WishFamily::matmul, input_whole, output({}), true}};
    case StyleKind::packed_rowwise:
      return {Interleaved(1, parts), Replicate(),
              Wish{WishFamily::matmul, on(tp, Interleaved(-1, parts)), output(Replicate()), false}};
    case StyleKind::sequence_parallel:
      if (module != ModuleKind::norm) return {};
      return {
          Replicate(), Replicate(),
          Wish{WishFamily::norm, on(tp, style.input.value_or(Shard(style.sequence_dim))), output({}), false}};
    case StyleKind::replicate:
      return whole(module, style.input ? input_whole : Wished{}, on(tp, style.output));
    case StyleKind::prepare_input:
    case StyleKind::prepare_output:
    case StyleKind::prepare_input_output:
    case StyleKind::custom:
      return whole(module, on(tp, style.desired_input), on(tp, style.desired_output));
  }
  return {};
}

std::optional<Placement> expected_input(const Style& style, ModuleKind module) {
  switch (style.kind) {
    case StyleKind::rowwise:
      if (module == ModuleKind::embedding) return style.input;
      return style.input.value_or(Shard(-1));
    case StyleKind::sequence_parallel:
      if (module != ModuleKind::norm) return std::nullopt;
      return style.input.value_or(Shard(style.sequence_dim));
    case StyleKind::packed_rowwise:  // its parts are not in the style alone; see layout_flow
    case StyleKind::prepare_output:
      return std::nullopt;
    default:
      return style.input;
  }
}

std::optional<Placement> given_output(const Style& style, ModuleKind module) {
  switch (style.kind) {
    case StyleKind::colwise:
    case StyleKind::embedding_colwise:
      return style.output.value_or(Shard(-1));
    case StyleKind::rowwise:
    case StyleKind::packed_rowwise:
    case StyleKind::embedding_rowwise:
      return style.output.value_or(Replicate());
    case StyleKind::sequence_parallel:
      if (module != ModuleKind::norm && !style.output) return std::nullopt;  // a Dropout gives what it gets
      return style.output.value_or(Shard(style.sequence_dim));
    case StyleKind::replicate:
      if (style.output) return style.output;
      // Whole weights on a whole input. What comes otherwise passes otherwise, so this is known for a stated one only.
      return style.input ? std::optional<Placement>(Replicate()) : std::nullopt;
    case StyleKind::packed_colwise:
      return style.output;  // else Interleaved
    case StyleKind::prepare_input:
      return std::nullopt;
    case StyleKind::prepare_output:
    case StyleKind::prepare_input_output:
    case StyleKind::custom:
      return style.desired_output;
  }
  return std::nullopt;
}

}  // namespace dtensor::detail
