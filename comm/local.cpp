// Groups of one rank, and the world of one rank.
#include "comm/local_reduction.h"
#include "comm/world_state.h"
#include "placements/error.h"

namespace dtensor::detail {

namespace {

class LocalBackend final : public Backend {
 public:
  explicit LocalBackend(GroupIdentity group) : group_(std::move(group)) {}

  const char* name() const override { return "local"; }
  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  std::chrono::milliseconds timeout() const override { return timeout_; }

  BackendWorkPointer all_reduce(const Call&, at::Tensor&, ReduceOp) override { return nullptr; }
  BackendWorkPointer all_gather(const Call& call, std::vector<at::Tensor>& outputs,
                                const at::Tensor& input) override {
    return copy(call, input, outputs.front());
  }
  BackendWorkPointer reduce_scatter(const Call& call, at::Tensor& output,
                                    const std::vector<at::Tensor>& inputs, ReduceOp) override {
    return copy(call, inputs.front(), output);
  }
  BackendWorkPointer all_to_all(const Call& call, std::vector<at::Tensor>& outputs,
                                const std::vector<at::Tensor>& inputs) override {
    return copy(call, inputs.front(), outputs.front());
  }
  BackendWorkPointer broadcast(const Call&, at::Tensor&, int) override { return nullptr; }
  BackendWorkPointer scatter(const Call& call, at::Tensor& output, const std::vector<at::Tensor>& inputs,
                             int) override {
    return copy(call, inputs.front(), output);
  }
  BackendWorkPointer send(const Call& call, const at::Tensor&, int, int) override { refuse(call); }
  BackendWorkPointer recv(const Call& call, at::Tensor&, int, int) override { refuse(call); }
  void barrier(const Call&) override {}

 private:
  BackendWorkPointer copy(const Call& call, const at::Tensor& from, const at::Tensor& to) const {
    if (from.numel() != to.numel()) {
      throw DesyncError(describe(group_, call) + ": the output has " + std::to_string(to.numel()) +
                        " elements, the input " + std::to_string(from.numel()));
    }
    copy_elements(from, to);
    return nullptr;
  }
  [[noreturn]] void refuse(const Call& call) const {
    throw CommError(describe(group_, call) + ": a group of one rank has no peer");
  }

  GroupIdentity group_;
  std::chrono::milliseconds timeout_ = std::chrono::seconds(100);
};

class SingleWorldState final : public WorldState {
 public:
  explicit SingleWorldState(std::chrono::milliseconds timeout) : timeout_(timeout) {}
  std::unique_ptr<Backend> make_backend(const GroupIdentity& group) override {
    return make_local_backend(group);
  }
  void check_device(c10::DeviceType) const override {}
  void post_abort(const std::string& text) noexcept override {
    try {
      note_ = text;
    } catch (...) {  // no memory for a note that nobody waits for
    }
  }
  std::optional<std::string> abort_note() const override { return note_; }
  std::chrono::milliseconds timeout() const override { return timeout_; }

 private:
  std::chrono::milliseconds timeout_;
  std::optional<std::string> note_;
};

}  // namespace

std::unique_ptr<Backend> make_local_backend(GroupIdentity group) {
  return std::make_unique<LocalBackend>(std::move(group));
}

std::unique_ptr<WorldState> make_single_world_state(std::chrono::milliseconds timeout) {
  return std::make_unique<SingleWorldState>(timeout);
}

}  // namespace dtensor::detail
