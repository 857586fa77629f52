#include "comm/thread_round.h"

#include "placements/error.h"

#include <ATen/ops/empty.h>

namespace dtensor::detail {

std::string describe_tensor(const at::Tensor& tensor) {
  std::string text = std::string(c10::toString(tensor.scalar_type())) + " [";
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    text += (dim == 0 ? "" : ", ") + std::to_string(tensor.size(dim));
  }
  return text + "]";
}

at::Tensor copy_of(const at::Tensor& tensor) {
  at::Tensor copy =
      at::empty({tensor.numel()}, at::TensorOptions(tensor.scalar_type()).device(tensor.device()));
  copy_elements(tensor, copy);
  return copy;
}

namespace {

bool is_reduction(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter;
}

bool has_source(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::scatter;
}

}  // namespace

std::string ThreadAsk::to_string() const {
  std::string text = std::string(dtensor::to_string(collective)) + "(";
  if (is_reduction(collective)) text += std::string(dtensor::to_string(op)) + ", ";
  if (has_source(collective)) text += "source " + std::to_string(source) + ", ";
  const auto list = [&](const std::vector<at::Tensor>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      text += (i == 0 ? "" : ", ") + describe_tensor(tensors[i]);
  };
  list(inputs);
  const bool in_place = collective == Collective::all_reduce || collective == Collective::broadcast;
  if (!in_place && !outputs.empty()) {
    text += " -> ";
    list(outputs);
  }
  return text + ")";
}

bool ThreadRound::arrive(int position, ThreadAsk wanted) {
  asks_[static_cast<std::size_t>(position)] = std::move(wanted);
  return ++arrived_ == asks_.size() && !over_;
}

std::vector<std::int64_t> ThreadRound::missing(const std::vector<std::int64_t>& ranks) const {
  std::vector<std::int64_t> result;
  for (std::size_t i = 0; i < asks_.size(); ++i) {
    if (!asks_[i]) result.push_back(ranks[i]);
  }
  return result;
}

void ThreadRound::give_up(const std::string& text) {
  if (arrived_ == asks_.size()) return;  // somebody is at work on it
  error_ = text;
  over_ = true;
}

// Whether the asks fit together; sizes in elements, because a piece may have another shape at its
// destination.
bool ThreadRound::agree() const {
  const ThreadAsk& first = ask(0);
  const auto dtype = [](const ThreadAsk& one) {
    const auto& tensors = one.outputs.empty() ? one.inputs : one.outputs;
    return tensors.empty() ? at::ScalarType::Undefined : tensors.front().scalar_type();
  };
  const std::size_t size = asks_.size();
  for (std::size_t i = 0; i < size; ++i) {
    const ThreadAsk& other = ask(i);
    if (other.collective != first.collective || dtype(other) != dtype(first)) return false;
    if (is_reduction(first.collective) && other.op != first.op) return false;
    if (has_source(first.collective) && other.source != first.source) return false;
  }
  const auto same = [](const at::Tensor& a, const at::Tensor& b) { return a.numel() == b.numel(); };
  for (std::size_t i = 0; i < size; ++i) {
    switch (first.collective) {
      case Collective::all_reduce:
      case Collective::broadcast:
        if (ask(i).outputs[0].sizes() != first.outputs[0].sizes()) return false;
        break;
      case Collective::scatter:
        if (!same(ask(static_cast<std::size_t>(first.source)).inputs[i], ask(i).outputs[0])) return false;
        break;
      case Collective::all_gather:
        for (std::size_t j = 0; j < size; ++j) {
          if (!same(ask(j).outputs[i], ask(i).inputs[0])) return false;
        }
        break;
      case Collective::reduce_scatter:
        for (std::size_t j = 0; j < size; ++j) {
          if (!same(ask(j).inputs[i], ask(i).outputs[0])) return false;
        }
        break;
      case Collective::all_to_all:
        for (std::size_t j = 0; j < size; ++j) {
          if (!same(ask(j).inputs[i], ask(i).outputs[j])) return false;
        }
        break;
      default:
        break;
    }
  }
  return true;
}

void ThreadRound::check(const GroupIdentity& group, const Call& call) const {
  if (agree()) return;
  std::string text = describe(group, call) + ": the ranks asked for different things:";
  for (std::size_t i = 0; i < asks_.size(); ++i) {
    text += "\n  rank " + std::to_string(group.ranks[i]) + ": " + ask(i).to_string();
  }
  throw DesyncError(text);
}

void ThreadRound::compute() {
  const ThreadAsk& first = ask(0);
  const std::size_t size = asks_.size();
  const auto reduced = [&](std::size_t piece) {
    std::vector<at::Tensor> parts;
    for (std::size_t j = 0; j < size; ++j) parts.push_back(ask(j).inputs[piece]);
    return reduce_in_order(parts, first.op);
  };
  switch (first.collective) {
    case Collective::all_reduce: {
      const at::Tensor result = reduced(0);
      for (std::size_t i = 0; i < size; ++i) copy_elements(result, ask(i).outputs[0]);
      break;
    }
    case Collective::broadcast:
      for (std::size_t i = 0; i < size; ++i) {
        copy_elements(ask(static_cast<std::size_t>(first.source)).inputs[0], ask(i).outputs[0]);
      }
      break;
    case Collective::scatter:
      for (std::size_t i = 0; i < size; ++i) {
        copy_elements(ask(static_cast<std::size_t>(first.source)).inputs[i], ask(i).outputs[0]);
      }
      break;
    case Collective::all_gather:
      for (std::size_t i = 0; i < size; ++i) {
        for (std::size_t j = 0; j < size; ++j) copy_elements(ask(j).inputs[0], ask(i).outputs[j]);
      }
      break;
    case Collective::reduce_scatter:
      for (std::size_t i = 0; i < size; ++i) copy_elements(reduced(i), ask(i).outputs[0]);
      break;
    case Collective::all_to_all:
      for (std::size_t i = 0; i < size; ++i) {
        for (std::size_t j = 0; j < size; ++j) copy_elements(ask(j).inputs[i], ask(i).outputs[j]);
      }
      break;
    default:
      break;
  }
}

void ThreadRound::run(const GroupIdentity& group, const Call& call) {
  try {
    check(group, call);
    compute();
  } catch (const DesyncError& error) {
    error_ = error.what_without_backtrace();
    is_desync_ = true;
  } catch (const std::exception& error) {
    error_ = describe(group, call) + ": " + error.what();
  }
}

void ThreadRound::rethrow() const {
  if (!error_) return;
  if (is_desync_) throw DesyncError(*error_);
  throw CommError(*error_);
}

}  // namespace dtensor::detail
