#include "comm/group.h"

#include "comm/backend.h"
#include "comm/world.h"
#include "comm/world_state.h"
#include "placements/error.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/graph_task.h>

#include <numeric>

namespace dtensor {

namespace detail {

std::string describe_ranks(const std::vector<std::int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

std::string describe(const GroupIdentity& group, const Call& call) {
  std::string what = to_string(call.collective);
  if (call.peer >= 0) {
    what += call.collective == Collective::send ? " to rank " : " from rank ";
    what += std::to_string(group.ranks[static_cast<std::size_t>(call.peer)]);
  }
  return what + ", sequence " + std::to_string(call.sequence) + ", on group '" + group.label + "' (" +
         describe_ranks(group.ranks) + "), rank " +
         std::to_string(group.ranks[static_cast<std::size_t>(group.rank)]);
}

}  // namespace detail

// ---- Work ----

Work::Work() = default;
Work::Work(std::unique_ptr<detail::BackendWork> work) : work_(std::move(work)) {}
Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&&) noexcept = default;
Work::~Work() = default;

void Work::wait() {
  if (work_) work_->wait();
}
void Work::synchronize() {
  if (work_) work_->synchronize();
}
bool Work::is_done() { return !work_ || work_->is_done(); }

// ---- Group ----

namespace {

std::int64_t bytes_of(const at::Tensor& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }

std::int64_t bytes_without(const std::vector<at::Tensor>& tensors, int own) {
  std::int64_t sum = 0;
  for (const auto& tensor : tensors) sum += bytes_of(tensor);
  return sum - bytes_of(tensors[static_cast<std::size_t>(own)]);
}

bool is_point_to_point(Collective collective) {
  return collective == Collective::send || collective == Collective::recv;
}

// Reductions see bool as bytes that are 0 or 1: "any" is their maximum, "all" their minimum.
at::Tensor without_bool(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool ? tensor.detach().view(at::kByte) : tensor;
}

ReduceOp without_bool(ReduceOp op, const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kBool) return op;
  return op == ReduceOp::sum || op == ReduceOp::max ? ReduceOp::max : ReduceOp::min;
}

}  // namespace

// The issuing of one collective: what every method does first, undone at its end.
class Group::Issue {
 public:
  Issue(Group& group, Collective collective, std::int64_t bytes, int peer) : group_(group) {
    const auto self = std::this_thread::get_id();
    auto owner = std::thread::id();
    const bool claimed = group.owner_.compare_exchange_strong(owner, self);
    // A backward pass may run on an engine thread while the owner waits for it.
    if (!claimed && owner != self && torch::autograd::get_current_graph_task_id() == -1) {
      group.refuse(collective,
                   "another thread of this rank issues on this group. Give the background user "
                   "connections of its own by group.duplicate(label), or call World::release_thread() "
                   "when the program goes on in another thread");
    }
    if (group.issuing_.exchange(true)) {
      group.refuse(collective,
                   "another thread of this rank is issuing on this group at this moment; use "
                   "group.duplicate(label) for a background user");
    }
    auto& sequence = is_point_to_point(collective) ? group.point_to_point_sequence_ : group.sequence_;
    call_ = {collective, sequence++, peer};
    if (group.size() > 1) group.world_->record(group.counted_as_, collective, bytes);
  }
  ~Issue() { group_.issuing_.store(false); }
  Issue(const Issue&) = delete;
  Issue& operator=(const Issue&) = delete;

  const detail::Call& call() const { return call_; }

 private:
  Group& group_;
  detail::Call call_{};
};

Group::Group(World& world, const detail::GroupIdentity& identity, std::unique_ptr<detail::Backend> backend)
    : world_(&world),
      ranks_(identity.ranks),
      label_(identity.label),
      counted_as_(identity.label),
      device_type_(identity.device_type),
      backend_(std::move(backend)),
      rank_(identity.rank) {
  backend_->set_timeout(world.timeout());
}

Group::~Group() = default;

Group::Issue Group::issue(Collective collective, std::int64_t bytes, int peer) {
  return {*this, collective, bytes, peer};
}

detail::GroupIdentity Group::identity() const { return {ranks_, rank_, label_, device_type_}; }

const char* Group::backend_name() const { return backend_->name(); }
void Group::set_timeout(std::chrono::milliseconds timeout) { backend_->set_timeout(timeout); }
std::chrono::milliseconds Group::timeout() const { return backend_->timeout(); }
void Group::release_thread() { owner_.store(std::thread::id()); }

void Group::refuse(Collective collective, const std::string& text) const {
  const auto sequence = is_point_to_point(collective) ? point_to_point_sequence_ : sequence_;
  throw CommError(detail::describe(identity(), {collective, sequence}) + ": " + text);
}

void Group::check_tensor(Collective collective, const at::Tensor& tensor, const char* what) const {
  const auto complain = [&](const std::string& text) { refuse(collective, std::string(what) + " " + text); };
  if (!tensor.defined()) complain("is an undefined tensor");
  if (tensor.device().type() != device_type_) {
    complain("is on " + tensor.device().str() + ", the group is for " +
             c10::DeviceTypeName(device_type_, true));
  }
  if (tensor.layout() != at::kStrided || !tensor.is_contiguous()) {
    complain("is not contiguous; call contiguous() first");
  }
  if (tensor.is_conj() || tensor.is_neg()) complain("is a lazy conjugate or negative; resolve it first");
}

void Group::check_list(Collective collective, const std::vector<at::Tensor>& tensors, const at::Tensor& like,
                       const char* what) const {
  if (tensors.size() != ranks_.size()) {
    refuse(collective, std::string(what) + " has " + std::to_string(tensors.size()) + " tensors for " +
                           std::to_string(ranks_.size()) + " ranks");
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string name = std::string(what) + "[" + std::to_string(i) + "]";
    check_tensor(collective, tensors[i], name.c_str());
    if (tensors[i].scalar_type() != like.scalar_type()) {
      refuse(collective, name + " is " + c10::toString(tensors[i].scalar_type()) + ", but " +
                             c10::toString(like.scalar_type()) + " is expected");
    }
  }
}

void Group::check_peer(Collective collective, int peer, const char* what) const {
  if (peer < 0 || peer >= size()) {
    refuse(collective, std::string(what) + " " + std::to_string(peer) + " is not a rank of this group of " +
                           std::to_string(size()));
  }
  if (is_point_to_point(collective) && peer == rank_) {
    refuse(collective, std::string(what) + " " + std::to_string(peer) + " is this rank itself");
  }
}

Work Group::all_reduce(at::Tensor& tensor, ReduceOp op) {
  constexpr auto collective = Collective::all_reduce;
  check_tensor(collective, tensor, "the tensor");
  if (tensor.scalar_type() == at::kBool && op == ReduceOp::avg) refuse(collective, "bool has no average");
  const Issue issued = issue(collective, bytes_of(tensor));
  at::Tensor data = without_bool(tensor);
  return Work(backend_->all_reduce(issued.call(), data, without_bool(op, tensor)));
}

Work Group::all_gather(std::vector<at::Tensor>& outputs, const at::Tensor& input) {
  constexpr auto collective = Collective::all_gather;
  check_tensor(collective, input, "the input");
  check_list(collective, outputs, input, "outputs");
  const Issue issued = issue(collective, bytes_without(outputs, rank_));
  return Work(backend_->all_gather(issued.call(), outputs, input));
}

Work Group::reduce_scatter(at::Tensor& output, const std::vector<at::Tensor>& inputs, ReduceOp op) {
  constexpr auto collective = Collective::reduce_scatter;
  check_tensor(collective, output, "the output");
  check_list(collective, inputs, output, "inputs");
  if (output.scalar_type() == at::kBool && op == ReduceOp::avg) refuse(collective, "bool has no average");
  const Issue issued = issue(collective, bytes_without(inputs, rank_));
  at::Tensor data = without_bool(output);
  if (output.scalar_type() != at::kBool) {
    return Work(backend_->reduce_scatter(issued.call(), data, inputs, op));
  }
  std::vector<at::Tensor> bytes;
  for (const auto& input : inputs) bytes.push_back(without_bool(input));
  return Work(backend_->reduce_scatter(issued.call(), data, bytes, without_bool(op, output)));
}

Work Group::all_to_all(std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs) {
  constexpr auto collective = Collective::all_to_all;
  if (inputs.empty()) refuse(collective, "inputs has 0 tensors for " + std::to_string(size()) + " ranks");
  check_tensor(collective, inputs.front(), "inputs[0]");
  check_list(collective, inputs, inputs.front(), "inputs");
  check_list(collective, outputs, inputs.front(), "outputs");
  const Issue issued = issue(collective, bytes_without(inputs, rank_));
  return Work(backend_->all_to_all(issued.call(), outputs, inputs));
}

Work Group::broadcast(at::Tensor& tensor, int source) {
  constexpr auto collective = Collective::broadcast;
  check_peer(collective, source, "source");
  check_tensor(collective, tensor, "the tensor");
  const Issue issued = issue(collective, source == rank_ ? 0 : bytes_of(tensor));
  return Work(backend_->broadcast(issued.call(), tensor, source));
}

Work Group::scatter(at::Tensor& output, const std::vector<at::Tensor>& inputs, int source) {
  constexpr auto collective = Collective::scatter;
  check_peer(collective, source, "source");
  check_tensor(collective, output, "the output");
  if (source == rank_) check_list(collective, inputs, output, "inputs");
  const Issue issued = issue(collective, source == rank_ ? 0 : bytes_of(output));
  static const std::vector<at::Tensor> none;
  return Work(backend_->scatter(issued.call(), output, source == rank_ ? inputs : none, source));
}

Work Group::send(const at::Tensor& tensor, int destination, int tag) {
  constexpr auto collective = Collective::send;
  check_peer(collective, destination, "destination");
  check_tensor(collective, tensor, "the tensor");
  const Issue issued = issue(collective, 0, destination);
  return Work(backend_->send(issued.call(), tensor, destination, tag));
}

Work Group::recv(at::Tensor& tensor, int source, int tag) {
  constexpr auto collective = Collective::recv;
  check_peer(collective, source, "source");
  check_tensor(collective, tensor, "the tensor");
  const Issue issued = issue(collective, bytes_of(tensor), source);
  return Work(backend_->recv(issued.call(), tensor, source, tag));
}

void Group::barrier() {
  const Issue issued = issue(Collective::barrier, 0);
  backend_->barrier(issued.call());
}

c10::intrusive_ptr<Group> Group::duplicate(const std::string& label) const {
  auto& group = world_->group(ranks_, label_ + "/" + label, device_type_);
  group.counted_as_ = counted_as_;
  return c10::intrusive_ptr<Group>::reclaim_copy(&group);
}

}  // namespace dtensor
