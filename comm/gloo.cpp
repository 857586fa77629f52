// CPU tensors of processes, over c10d's Gloo.
//
// Data moves as bytes, so every dtype and size works; sums run in Gloo where it knows the dtype. Reductions of pieces
// are an all-to-all and a local sum in rank order. Gloo's own time-outs are switched off: waits are cut into slices
// that look at the watch (process_world.h), because only that knows who is missing. After a failure Gloo's object can
// neither be used nor destroyed (its threads may be blocked for good), so it is left behind.
#include "comm/background.h"
#include "comm/local_reduction.h"
#include "comm/process_world.h"
#include "placements/error.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>
#include <functional>
#include <numeric>

namespace dtensor::detail {

namespace {

using c10d::ProcessGroupGloo;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using C10dWork = c10::intrusive_ptr<c10d::Work>;

constexpr milliseconds slice{100};
constexpr milliseconds never = std::chrono::hours(24 * 365);

// The tensor's memory as a flat tensor of another dtype, without autograd or dispatch; keeps the tensor alive.
at::Tensor flat(const at::Tensor& tensor, at::ScalarType dtype) {
  const auto options = at::TensorOptions(dtype);
  const auto count = static_cast<std::int64_t>(tensor.nbytes() / c10::elementSize(dtype));
  if (count == 0) return at::empty({0}, options);
  return at::from_blob(
      tensor.mutable_data_ptr(), {count}, [tensor](void*) {}, options);
}

at::Tensor bytes_of(const at::Tensor& tensor) { return flat(tensor, at::kByte); }

at::Tensor new_bytes(std::int64_t count) { return at::empty({count}, at::TensorOptions(at::kByte)); }

bool gloo_reduces(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

c10d::ReduceOp gloo_op(ReduceOp op) {
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

// Gloo's text without its source line, its advice and what follows.
std::string essence(std::string text) {
  text = text.substr(0, text.find('\n'));
  if (text.rfind("[/", 0) == 0) text = text.substr(std::min(text.find("] ") + 2, text.size()));
  return text.substr(0, text.find(". This is typically"));
}

// One rank's end of a group; shared with its works.
struct Connection {
  std::shared_ptr<ProcessWorld> world;
  GroupIdentity group;
  std::shared_ptr<GroupProgress> progress;
  std::atomic<milliseconds> timeout;
  c10::intrusive_ptr<ProcessGroupGloo> gloo;  // made by the first collective
  std::optional<std::string> broken;          // why nothing works any more
  std::atomic<int> blocked{0};                // calls in Gloo that may never return

  ~Connection() {
    if (broken || blocked.load() > 0) gloo.release();  // NOLINT: left behind on purpose
  }

  [[noreturn]] void fail(const Call& call, const std::string& symptom) {
    try {
      world->fail(group, *progress, call, symptom);
    } catch (const CommError& error) {
      broken = error.what_without_backtrace();
      throw;
    }
  }

  // Waits until `wait_for(slice)` is true, as long as there is hope.
  void wait(const Call& call, const std::function<bool(milliseconds)>& wait_for) {
    const auto limit = timeout.load();
    const auto deadline = Clock::now() + limit;
    while (true) {
      try {
        if (wait_for(slice)) return;
      } catch (const std::exception& error) {
        fail(call, "the connection failed (" + essence(error.what()) + ")");
      }
      if (world->reason_to_stop(group, *progress, call)) fail(call, "");
      if (Clock::now() > deadline) fail(call, "timed out after " + std::to_string(limit.count()) + " ms");
    }
  }

  // Before each use.
  ProcessGroupGloo& use(const Call& call) {
    if (broken) throw CommError(describe(group, call) + ": the group failed before: " + *broken);
    if (call.peer < 0) progress->issued.store(call.sequence + 1);
    if (!gloo) connect(call);
    if (const auto reason = world->reason_to_stop(group, *progress, call)) fail(call, "");
    return *gloo;
  }

  void connect(const Call& call) {
    world->meet(group, *progress, call, timeout);
    const auto made = std::make_shared<c10::intrusive_ptr<ProcessGroupGloo>>();
    const std::string host = world->identity().master_address;
    const Background making(
        [made, host, rank = group.rank, size = group.size(), store = world->group_store(*progress)] {
          auto options = ProcessGroupGloo::Options::create(never);
          const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
          const bool is_local = host == "localhost" || host.rfind("127.", 0) == 0;
          options->devices.push_back(interface  ? ProcessGroupGloo::createDeviceForInterface(interface)
                                     : is_local ? ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                                : ProcessGroupGloo::createDefaultDevice());
          *made = c10::make_intrusive<ProcessGroupGloo>(store, rank, size, options);
        });
    wait(call, [&](milliseconds patience) {
      if (!making.wait_for(patience)) return false;
      making.rethrow();
      return true;
    });
    gloo = *made;
  }
};

// A collective of Gloo, and what this rank does after it: unpack, sum, divide.
class CollectiveWork final : public BackendWork {
 public:
  CollectiveWork(std::shared_ptr<Connection> connection, Call call, C10dWork work,
                 std::function<void()> after)
      : connection_(std::move(connection)), call_(call), work_(std::move(work)), after_(std::move(after)) {
    ++connection_->blocked;
  }
  ~CollectiveWork() override {
    if (!counted_off_ && work_->isCompleted()) --connection_->blocked;
  }

  void wait() override {
    if (counted_off_) return rethrow();
    connection_->wait(call_, [&](milliseconds patience) {
      try {
        work_->wait(patience);
      } catch (const std::exception&) {
        if (!work_->isCompleted()) return false;  // the slice is over
        work_->wait();                            // it ended just then, or the exception is its own: throws if it failed
      }
      return true;
    });
    complete();
  }
  bool is_done() override {
    if (counted_off_) return true;
    if (!work_->isCompleted()) return false;
    if (!work_->isSuccess()) return true;  // wait() throws
    complete();
    return true;
  }

 private:
  void complete() {
    counted_off_ = true;
    --connection_->blocked;
    if (after_) after_();
    after_ = nullptr;
  }
  void rethrow() const {}

  std::shared_ptr<Connection> connection_;
  Call call_;
  C10dWork work_;
  std::function<void()> after_;
  bool counted_off_ = false;
};

// A send or receive. Gloo's own wait for these breaks the whole group when its time is up, so it waits without limit
// on a thread that may be left behind.
class PointToPointWork final : public BackendWork {
 public:
  PointToPointWork(const std::shared_ptr<Connection>& connection, Call call, C10dWork work)
      : connection_(connection), call_(call), background_([connection, work = std::move(work)] {
          ++connection->blocked;
          try {
            work->wait();
          } catch (...) {
            --connection->blocked;
            throw;
          }
          --connection->blocked;
        }) {}

  void wait() override {
    connection_->wait(call_, [&](milliseconds patience) {
      if (!background_.wait_for(patience)) return false;
      background_.rethrow();
      return true;
    });
  }
  bool is_done() override { return background_.is_done(); }

 private:
  std::shared_ptr<Connection> connection_;
  Call call_;
  Background background_;
};

class GlooBackend final : public Backend {
 public:
  GlooBackend(std::shared_ptr<ProcessWorld> world, const GroupIdentity& group)
      : connection_(std::make_shared<Connection>()) {
    connection_->group = group;
    connection_->progress = world->add_progress(group);
    connection_->timeout = world->timeout();
    connection_->world = std::move(world);
  }

  const char* name() const override { return "gloo"; }
  void set_timeout(milliseconds timeout) override { connection_->timeout = timeout; }
  milliseconds timeout() const override { return connection_->timeout; }

  BackendWorkPointer all_reduce(const Call& call, at::Tensor& tensor, ReduceOp op) override {
    auto& gloo = connection_->use(call);
    if (tensor.numel() == 0) return nullptr;
    if (!gloo_reduces(tensor.scalar_type())) return all_reduce_here(call, tensor, op);
    std::vector<at::Tensor> tensors = {flat(tensor, tensor.scalar_type())};
    c10d::AllreduceOptions options;
    options.reduceOp = gloo_op(op);
    std::function<void()> after;
    if (op == ReduceOp::avg)
      after = [sum = tensors[0], count = size()]() mutable { divide_by_count(sum, count); };
    return work(call, gloo.allreduce(tensors, options), std::move(after));
  }

  BackendWorkPointer all_gather(const Call& call, std::vector<at::Tensor>& outputs,
                                const at::Tensor& input) override {
    auto& gloo = connection_->use(call);
    const auto own = static_cast<std::size_t>(connection_->group.rank);
    if (outputs[own].numel() != input.numel()) {
      connection_->fail(call, "outputs[" + std::to_string(own) + "] has " +
                                  std::to_string(outputs[own].numel()) + " elements, this rank's input " +
                                  std::to_string(input.numel()));
    }
    std::size_t largest = 0;
    bool equal = true;
    for (const auto& output : outputs) {
      largest = std::max(largest, output.nbytes());
      equal = equal && output.nbytes() == outputs[0].nbytes();
    }
    if (largest == 0) return nullptr;
    std::vector<at::Tensor> sources = {bytes_of(input)};
    std::vector<std::vector<at::Tensor>> targets(1);
    if (equal) {
      for (const auto& output : outputs) targets[0].push_back(bytes_of(output));
      return work(call, gloo.allgather(targets, sources));
    }
    // Unequal pieces travel padded to the largest.
    const auto width = static_cast<std::int64_t>(largest);
    sources[0] = new_bytes(width);
    copy_elements(bytes_of(input), sources[0].narrow(0, 0, static_cast<std::int64_t>(input.nbytes())));
    for (std::size_t i = 0; i < outputs.size(); ++i) targets[0].push_back(new_bytes(width));
    return work(call, gloo.allgather(targets, sources), [padded = targets[0], outputs] {
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        copy_elements(padded[i].narrow(0, 0, static_cast<std::int64_t>(outputs[i].nbytes())),
                      bytes_of(outputs[i]));
      }
    });
  }

  BackendWorkPointer reduce_scatter(const Call& call, at::Tensor& output,
                                    const std::vector<at::Tensor>& inputs, ReduceOp op) override {
    connection_->use(call);
    std::vector<at::Tensor> parts;
    for (int i = 0; i < size(); ++i) parts.push_back(at::empty_like(output));
    return exchange(call, parts, inputs,
                    [parts, output, op] { copy_elements(reduce_in_order(parts, op), output); });
  }

  BackendWorkPointer all_to_all(const Call& call, std::vector<at::Tensor>& outputs,
                                const std::vector<at::Tensor>& inputs) override {
    connection_->use(call);
    return exchange(call, outputs, inputs, nullptr);
  }

  BackendWorkPointer broadcast(const Call& call, at::Tensor& tensor, int source) override {
    auto& gloo = connection_->use(call);
    if (tensor.nbytes() == 0) return nullptr;
    std::vector<at::Tensor> tensors = {bytes_of(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = source;
    return work(call, gloo.broadcast(tensors, options));
  }

  // Gloo's scatter wants equal pieces; the others do not know the source's sizes, so nothing is padded.
  BackendWorkPointer scatter(const Call& call, at::Tensor& output, const std::vector<at::Tensor>& inputs,
                             int source) override {
    connection_->use(call);
    const at::Tensor nothing = new_bytes(0);
    std::vector<at::Tensor> from(static_cast<std::size_t>(size()), nothing), to = from;
    if (source == connection_->group.rank) from = inputs;
    to[static_cast<std::size_t>(source)] = output;
    return exchange(call, to, from, nullptr);
  }

  BackendWorkPointer send(const Call& call, const at::Tensor& tensor, int destination, int tag) override {
    auto& gloo = connection_->use(call);
    std::vector<at::Tensor> tensors = {bytes_of(tensor)};
    return std::make_unique<PointToPointWork>(connection_, call, gloo.send(tensors, destination, tag));
  }
  BackendWorkPointer recv(const Call& call, at::Tensor& tensor, int source, int tag) override {
    auto& gloo = connection_->use(call);
    std::vector<at::Tensor> tensors = {bytes_of(tensor)};
    return std::make_unique<PointToPointWork>(connection_, call, gloo.recv(tensors, source, tag));
  }

  void barrier(const Call& call) override {
    auto& gloo = connection_->use(call);
    std::vector<at::Tensor> tensors = {at::zeros({1}, at::TensorOptions(at::kByte))};
    work(call, gloo.allreduce(tensors))->wait();
  }

 private:
  int size() const { return connection_->group.size(); }

  BackendWorkPointer work(const Call& call, C10dWork started, std::function<void()> after = nullptr) {
    return std::make_unique<CollectiveWork>(connection_, call, std::move(started), std::move(after));
  }

  // A dtype that Gloo cannot add: everybody gets all parts and reduces them alike.
  BackendWorkPointer all_reduce_here(const Call& call, at::Tensor& tensor, ReduceOp op) {
    std::vector<at::Tensor> parts;
    for (int i = 0; i < size(); ++i) parts.push_back(at::empty_like(tensor));
    std::vector<std::vector<at::Tensor>> targets(1);
    for (const auto& part : parts) targets[0].push_back(bytes_of(part));
    std::vector<at::Tensor> sources = {bytes_of(tensor)};
    return work(call, connection_->gloo->allgather(targets, sources),
                [parts, tensor, op] { copy_elements(reduce_in_order(parts, op), tensor); });
  }

  // All-to-all of pieces of any sizes, as one buffer each way.
  BackendWorkPointer exchange(const Call& call, const std::vector<at::Tensor>& outputs,
                              const std::vector<at::Tensor>& inputs, std::function<void()> after) {
    const auto sizes_of = [](const std::vector<at::Tensor>& tensors) {
      std::vector<std::int64_t> sizes;
      for (const auto& tensor : tensors) sizes.push_back(static_cast<std::int64_t>(tensor.nbytes()));
      return sizes;
    };
    auto to_sizes = sizes_of(outputs), from_sizes = sizes_of(inputs);
    at::Tensor to = new_bytes(std::accumulate(to_sizes.begin(), to_sizes.end(), std::int64_t{0}));
    at::Tensor from = new_bytes(std::accumulate(from_sizes.begin(), from_sizes.end(), std::int64_t{0}));
    std::int64_t offset = 0;
    for (const auto& input : inputs) {
      const auto bytes = static_cast<std::int64_t>(input.nbytes());
      copy_elements(bytes_of(input), from.narrow(0, offset, bytes));
      offset += bytes;
    }
    return work(call,
                static_cast<c10d::Backend&>(*connection_->gloo).alltoall_base(to, from, to_sizes, from_sizes),
                [outputs, to, after = std::move(after)] {
                  std::int64_t position = 0;
                  for (const auto& output : outputs) {
                    const auto bytes = static_cast<std::int64_t>(output.nbytes());
                    copy_elements(to.narrow(0, position, bytes), bytes_of(output));
                    position += bytes;
                  }
                  if (after) after();
                });
  }

  std::shared_ptr<Connection> connection_;
};

}  // namespace

bool has_gloo() { return true; }

std::unique_ptr<Backend> make_gloo_backend(std::shared_ptr<ProcessWorld> world, const GroupIdentity& group) {
  return std::make_unique<GlooBackend>(std::move(world), group);
}

}  // namespace dtensor::detail
