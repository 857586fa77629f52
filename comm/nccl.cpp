// CUDA tensors of processes, over c10d's NCCL.
//
// A collective is enqueued; wait() orders the current stream after it and returns. So nobody waits on the host, and a
// monitor thread per group looks after what is under way: when a collective takes longer than the time-out, or the
// watch (process_world.h) says that a peer is gone, it notes why and aborts the communicator. Kernels that waited end,
// and the next use of the group throws. c10d's own reaction to a time-out, ending the process, is switched off.
#include "comm/local_reduction.h"
#include "comm/process_world.h"
#include "placements/error.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace dtensor::detail {

namespace {

using c10d::ProcessGroupNCCL;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using C10dWork = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

constexpr milliseconds look_interval{250};

c10d::ReduceOp nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    default:
      return c10d::ReduceOp::SUM;  // avg divides afterwards
  }
}

// One rank's end of a group; shared with its works.
class Connection {
 public:
  Connection(std::shared_ptr<ProcessWorld> world, const GroupIdentity& group)
      : timeout(world->timeout()),
        world_(std::move(world)),
        group_(group),
        progress_(world_->add_progress(group)) {}

  ~Connection() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    if (monitor_.joinable()) monitor_.join();
  }

  const GroupIdentity& group() const { return group_; }

  // Before each use.
  ProcessGroupNCCL& use(const Call& call) {
    rethrow(call);
    if (call.peer < 0) progress_->issued.store(call.sequence + 1);
    if (!nccl_) connect(call);
    return *nccl_;
  }

  void rethrow(const Call& call) {
    const std::lock_guard lock(mutex_);
    if (broken_) throw CommError(describe(group_, call) + ": the group failed: " + *broken_);
  }

  void add(const Call& call, const C10dWork& work) {
    const std::lock_guard lock(mutex_);
    under_way_.push_back({call, work, Clock::now()});
  }

  std::atomic<milliseconds> timeout;

 private:
  struct UnderWay {
    Call call;
    C10dWork work;
    Clock::time_point since;
  };

  void connect(const Call& call) {
    world_->meet(group_, *progress_, call, timeout);
    setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/0);  // read by the constructor
    const auto options = ProcessGroupNCCL::Options::create();
    options->timeout = timeout.load() * 2 + std::chrono::seconds(30);
    nccl_ = c10::make_intrusive<ProcessGroupNCCL>(world_->group_store(*progress_), group_.rank, group_.size(),
                                                  options);
    monitor_ = std::thread([this] { look_after(); });
  }

  void look_after() {
    std::unique_lock lock(mutex_);
    while (!stop_ && !broken_) {
      changed_.wait_for(lock, look_interval);
      while (!under_way_.empty() && under_way_.front().work->isCompleted()) under_way_.pop_front();
      if (under_way_.empty()) continue;
      const auto [call, work, since] = under_way_.front();
      const auto limit = timeout.load();
      const bool late = Clock::now() - since > limit;
      lock.unlock();
      std::string text;
      if (late || world_->reason_to_stop(group_, *progress_, call)) {
        try {
          world_->fail(group_, *progress_, call, "timed out after " + std::to_string(limit.count()) + " ms");
        } catch (const CommError& error) {
          text = error.what_without_backtrace();
        }
      }
      lock.lock();
      if (text.empty() || work->isCompleted()) continue;
      broken_ = text;
      lock.unlock();
      nccl_->abort();
      lock.lock();
    }
  }

  std::shared_ptr<ProcessWorld> world_;
  GroupIdentity group_;
  std::shared_ptr<GroupProgress> progress_;
  c10::intrusive_ptr<ProcessGroupNCCL> nccl_;  // made by the first collective

  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread monitor_;
  bool stop_ = false;
  std::optional<std::string> broken_;  // why nothing works any more
  std::deque<UnderWay> under_way_;
};

class NcclWork final : public BackendWork {
 public:
  // `tensors` live as long as the work; `after` is enqueued on the stream that waits.
  NcclWork(std::shared_ptr<Connection> connection, Call call, C10dWork work, Tensors tensors,
           std::function<void()> after)
      : connection_(std::move(connection)),
        call_(call),
        work_(std::move(work)),
        tensors_(std::move(tensors)),
        after_(std::move(after)) {}

  void wait() override {
    connection_->rethrow(call_);
    try {
      work_->wait();
    } catch (const std::exception& error) {
      connection_->rethrow(call_);
      throw CommError(describe(connection_->group(), call_) + ": " + error.what());
    }
    if (after_) after_();
    after_ = nullptr;
  }
  void synchronize() override {
    for (int turn = 0; !work_->isCompleted(); ++turn) {
      connection_->rethrow(call_);
      if (turn > 100) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    wait();
    if (!tensors_.empty()) c10::cuda::getCurrentCUDAStream(tensors_.front().get_device()).synchronize();
  }
  bool is_done() override {
    if (!work_->isCompleted()) return false;
    if (after_) wait();
    return true;
  }

 private:
  std::shared_ptr<Connection> connection_;
  Call call_;
  C10dWork work_;
  Tensors tensors_;
  std::function<void()> after_;
};

class NcclBackend final : public Backend {
 public:
  NcclBackend(std::shared_ptr<ProcessWorld> world, const GroupIdentity& group)
      : connection_(std::make_shared<Connection>(std::move(world), group)) {}

  const char* name() const override { return "nccl"; }
  void set_timeout(milliseconds timeout) override { connection_->timeout = timeout; }
  milliseconds timeout() const override { return connection_->timeout; }

  BackendWorkPointer all_reduce(const Call& call, at::Tensor& tensor, ReduceOp op) override {
    auto& nccl = connection_->use(call);
    if (tensor.numel() == 0) return nullptr;
    Tensors tensors = {tensor.detach()};
    c10d::AllreduceOptions options;
    options.reduceOp = nccl_op(op);
    return work(call, nccl.allreduce(tensors, options), tensors, divide(tensors[0], op));
  }
  BackendWorkPointer all_gather(const Call& call, Tensors& outputs, const at::Tensor& input) override {
    auto& nccl = connection_->use(call);
    Tensors keep = outputs, inputs = {input.detach()};
    std::vector<Tensors> targets = {flat(outputs)};
    inputs[0] = inputs[0].view(-1);
    keep.push_back(input);
    if (is_empty(outputs)) return nullptr;
    return work(call, nccl.allgather(targets, inputs), keep);
  }
  BackendWorkPointer reduce_scatter(const Call& call, at::Tensor& output, const Tensors& inputs,
                                    ReduceOp op) override {
    auto& nccl = connection_->use(call);
    if (is_empty(inputs)) return nullptr;
    Tensors outputs = {output.detach().view(-1)}, keep = inputs;
    std::vector<Tensors> sources = {flat(inputs)};
    keep.push_back(output);
    c10d::ReduceScatterOptions options;
    options.reduceOp = nccl_op(op);
    return work(call, nccl.reduce_scatter(outputs, sources, options), keep, divide(outputs[0], op));
  }
  BackendWorkPointer all_to_all(const Call& call, Tensors& outputs, const Tensors& inputs) override {
    return exchange(call, outputs, inputs);
  }
  BackendWorkPointer broadcast(const Call& call, at::Tensor& tensor, int source) override {
    auto& nccl = connection_->use(call);
    if (tensor.numel() == 0) return nullptr;
    Tensors tensors = {tensor.detach()};
    c10d::BroadcastOptions options;
    options.rootRank = source;
    return work(call, nccl.broadcast(tensors, options), tensors);
  }
  // NCCL's scatter in c10d wants equal pieces; an all-to-all of mostly nothing takes any.
  BackendWorkPointer scatter(const Call& call, at::Tensor& output, const Tensors& inputs,
                             int source) override {
    const Tensors none(static_cast<std::size_t>(size()),
                       at::empty({0}, output.options().requires_grad(false)));
    Tensors outputs = none;
    outputs[static_cast<std::size_t>(source)] = output;
    return exchange(call, outputs, source == connection_->group().rank ? inputs : none);
  }
  BackendWorkPointer send(const Call& call, const at::Tensor& tensor, int destination, int tag) override {
    Tensors tensors = {tensor.detach()};
    return work(call, connection_->use(call).send(tensors, destination, tag), tensors);
  }
  BackendWorkPointer recv(const Call& call, at::Tensor& tensor, int source, int tag) override {
    Tensors tensors = {tensor.detach()};
    return work(call, connection_->use(call).recv(tensors, source, tag), tensors);
  }
  void barrier(const Call& call) override {
    auto& nccl = connection_->use(call);
    Tensors tensors = {at::zeros({1}, at::TensorOptions(at::kByte).device(at::kCUDA))};
    work(call, nccl.allreduce(tensors), tensors)->synchronize();
  }

 private:
  int size() const { return connection_->group().size(); }

  static Tensors flat(const Tensors& tensors) {
    Tensors result;
    for (const auto& tensor : tensors) result.push_back(tensor.detach().view(-1));
    return result;
  }
  static bool is_empty(const Tensors& tensors) {
    for (const auto& tensor : tensors) {
      if (tensor.numel() != 0) return false;
    }
    return true;
  }

  std::function<void()> divide(const at::Tensor& sum, ReduceOp op) const {
    if (op != ReduceOp::avg) return nullptr;
    return [sum = sum, count = size()]() mutable { divide_by_count(sum, count); };
  }

  BackendWorkPointer work(const Call& call, C10dWork started, Tensors keep,
                          std::function<void()> after = nullptr) {
    connection_->add(call, started);
    return std::make_unique<NcclWork>(connection_, call, std::move(started), std::move(keep),
                                      std::move(after));
  }

  BackendWorkPointer exchange(const Call& call, const Tensors& outputs, const Tensors& inputs) {
    auto& nccl = connection_->use(call);
    Tensors to = flat(outputs), from = flat(inputs), keep = outputs;
    keep.insert(keep.end(), inputs.begin(), inputs.end());
    return work(call, nccl.alltoall(to, from), keep);
  }

  std::shared_ptr<Connection> connection_;
};

}  // namespace

bool has_nccl() { return true; }

std::unique_ptr<Backend> make_nccl_backend(std::shared_ptr<ProcessWorld> world, const GroupIdentity& group) {
  return std::make_unique<NcclBackend>(std::move(world), group);
}

}  // namespace dtensor::detail
