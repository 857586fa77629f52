// The collectives among ranks that are threads, against values computed from the inputs of all ranks.
#include "comm/group.h"
#include "comm/run_ranks.h"
#include "comm/world.h"
#include "placements/error.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <catch2/catch_test_macros.hpp>

#include <mutex>
#include <numeric>

using namespace dtensor;

namespace {

using Sizes = std::vector<std::int64_t>;

// Facts checked on every rank; Catch2's macros are for one thread.
class Facts {
 public:
  void expect(bool holds, const std::string& what) {
    if (holds) return;
    const std::lock_guard lock(mutex_);
    broken_ += what + "\n";
  }
  std::string broken() const { return broken_; }

 private:
  std::mutex mutex_;
  std::string broken_;
};

// What rank `rank` has at its piece number `piece`: small integers, so that all sums are exact in any dtype.
at::Tensor value(int rank, int piece, std::int64_t size, at::ScalarType dtype) {
  const auto numbers = at::arange(size, at::TensorOptions(at::kLong));
  return (numbers.add(rank + 2 * piece).remainder(3).add(1)).to(dtype);
}

at::Tensor reduced(const std::vector<at::Tensor>& parts, ReduceOp op) {
  auto result = parts[0].clone();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const auto& part = parts[i];
    if (op == ReduceOp::sum || op == ReduceOp::avg) result = result.add(part);
    if (op == ReduceOp::product) result = result.mul(part);
    if (op == ReduceOp::max) result = result.maximum(part);
    if (op == ReduceOp::min) result = result.minimum(part);
  }
  if (op != ReduceOp::avg) return result;
  const auto count = static_cast<std::int64_t>(parts.size());
  return c10::isIntegralType(result.scalar_type(), true) ? result.div(count, "trunc") : result.div(count);
}

void check_all_collectives(int world, at::ScalarType dtype, const Sizes& sizes, Facts& facts) {
  run_ranks(world, [&](int rank) {
    Group& group = World::current().group();
    const auto options = at::TensorOptions(dtype);
    const auto size = [&](int piece) { return sizes[static_cast<std::size_t>(piece) % sizes.size()]; };
    const auto same = [&](const at::Tensor& got, const at::Tensor& right, const std::string& what) {
      facts.expect(at::equal(got, right), what + " on rank " + std::to_string(rank) + " of " +
                                              std::to_string(world) + ", " + c10::toString(dtype));
    };
    const auto pieces_of = [&](int of_rank) {
      std::vector<at::Tensor> pieces;
      for (int piece = 0; piece < world; ++piece) pieces.push_back(value(of_rank, piece, size(piece), dtype));
      return pieces;
    };
    for (const auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::max, ReduceOp::min}) {
      std::vector<at::Tensor> parts;
      for (int other = 0; other < world; ++other) parts.push_back(value(other, 0, size(0), dtype));
      auto tensor = parts[static_cast<std::size_t>(rank)].clone();
      group.all_reduce(tensor, op).wait();
      same(tensor, reduced(parts, op), std::string("all_reduce ") + to_string(op));

      std::vector<at::Tensor> mine;
      for (int other = 0; other < world; ++other) mine.push_back(value(other, rank, size(rank), dtype));
      auto output = at::zeros({size(rank)}, options);
      group.reduce_scatter(output, pieces_of(rank), op).wait();
      same(output, reduced(mine, op), std::string("reduce_scatter ") + to_string(op));
    }
    std::vector<at::Tensor> outputs;
    for (int other = 0; other < world; ++other) outputs.push_back(at::zeros({size(other)}, options));
    group.all_gather(outputs, value(rank, rank, size(rank), dtype)).wait();
    for (int other = 0; other < world; ++other) {
      same(outputs[static_cast<std::size_t>(other)], value(other, other, size(other), dtype), "all_gather");
    }
    for (auto& output : outputs) output = at::zeros({size(rank)}, options);
    group.all_to_all(outputs, pieces_of(rank)).wait();
    for (int other = 0; other < world; ++other) {
      same(outputs[static_cast<std::size_t>(other)], value(other, rank, size(rank), dtype), "all_to_all");
    }
    for (int source = 0; source < world; ++source) {
      auto tensor = value(rank, 0, size(0), dtype);
      group.broadcast(tensor, source).wait();
      same(tensor, value(source, 0, size(0), dtype), "broadcast");
      auto output = at::zeros({size(rank)}, options);
      group.scatter(output, rank == source ? pieces_of(source) : std::vector<at::Tensor>{}, source).wait();
      same(output, value(source, rank, size(rank), dtype), "scatter");
    }
    if (world > 1) {  // a ring: all send first
      group.send(value(rank, 0, size(rank), dtype), (rank + 1) % world, 7).wait();
      const int left = (rank + world - 1) % world;
      auto tensor = at::zeros({size(left)}, options);
      auto work = group.recv(tensor, left, 7);
      work.wait();
      facts.expect(work.is_done(), "recv is done");
      same(tensor, value(left, 0, size(left), dtype), "send and recv");
    }
    group.barrier();
  });
}

std::string message_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("threads: every collective, dtype, reduction and size") {
  Facts facts;
  for (int world = 1; world <= 4; ++world) {
    for (const auto dtype :
         {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte}) {
      for (const Sizes& sizes : {Sizes{4}, Sizes{3, 0, 2, 5}, Sizes{0}}) {
        check_all_collectives(world, dtype, sizes, facts);
      }
    }
  }
  CHECK(facts.broken() == "");
}

TEST_CASE("threads: bool is any and all; its average is refused") {
  Facts facts;
  run_ranks(2, [&](int rank) {
    Group& group = World::current().group();
    const auto mine =
        at::arange(4, at::TensorOptions(at::kLong)).bitwise_right_shift(1 - rank).remainder(2).eq(1);
    auto any = mine.clone();
    group.all_reduce(any, ReduceOp::sum).wait();
    auto all = mine.clone();
    group.all_reduce(all, ReduceOp::min).wait();
    facts.expect(any.sum().item<std::int64_t>() == 3, "any");
    facts.expect(all.sum().item<std::int64_t>() == 1, "all");
    facts.expect(contains(message_of([&] { group.all_reduce(any, ReduceOp::avg).wait(); }), "no average"),
                 "avg");
  });
  CHECK(facts.broken() == "");
}

TEST_CASE("threads: reductions have the same bits on all ranks, in rank order") {
  std::vector<at::Tensor> results(4), inputs(4);
  run_ranks(4, [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    inputs[index] =
        at::arange(1000, at::TensorOptions(at::kFloat)).mul(0.1 + rank).sin().mul(1 + 1000 * rank);
    results[index] = inputs[index].clone();
    World::current().group().all_reduce(results[index]).wait();
  });
  const auto right = inputs[0].add(inputs[1]).add(inputs[2]).add(inputs[3]);
  for (const auto& result : results) CHECK(at::equal(result, right));
}

TEST_CASE("threads: works may be waited for in any order and keep their tensors alive") {
  Facts facts;
  run_ranks(3, [&](int rank) {
    Group& group = World::current().group();
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 10; ++i) {
      tensors.push_back(at::full({5}, 1.0 * (rank + i)));
      works.push_back(group.all_reduce(tensors.back()));
    }
    for (int i = 9; i >= 0; --i) {
      works[static_cast<std::size_t>(i)].wait();
      facts.expect(tensors[static_cast<std::size_t>(i)].sum().item<double>() == 5.0 * (3 + 3 * i), "sum");
    }
    std::vector<at::Tensor> left(3);
    for (auto& tensor : left) tensor = at::zeros({2});
    {
      auto forgotten = group.all_gather(left, at::full({2}, 1.0 * rank));
    }  // not waited for: still correct for others
    group.barrier();
    facts.expect(left[2].sum().item<double>() == 4, "gathered");
  });
  CHECK(facts.broken() == "");
}

TEST_CASE("threads: ranks that ask for different things all get a DesyncError that names both") {
  Facts facts;
  run_ranks(3, [&](int rank) {
    Group& group = World::current().group();
    std::vector<at::Tensor> outputs = {at::zeros({4}), at::zeros({4}), at::zeros({4})};
    const auto attempt = [&](const std::string& what, const std::function<Work()>& issue,
                             const std::string& part) {
      try {
        issue().wait();
        facts.expect(false, what + " did not throw");
      } catch (const DesyncError& error) {
        facts.expect(contains(error.what(), part), what + ": " + error.what());
        facts.expect(contains(error.what(), "group 'world'"), what + " names the group: " + error.what());
      }
    };
    auto tensor = at::zeros({4});
    attempt(
        "collective",
        [&] { return rank == 1 ? group.all_gather(outputs, tensor) : group.all_reduce(tensor); },
        "rank 1: all_gather(Float [4]");
    attempt(
        "operation", [&] { return group.all_reduce(tensor, rank == 2 ? ReduceOp::max : ReduceOp::sum); },
        "rank 2: all_reduce(max, Float [4])");
    auto wide = at::zeros({rank + 4});
    attempt(
        "size", [&] { return group.all_reduce(wide); }, "rank 2: all_reduce(sum, Float [6])");
    auto other = at::zeros({4}, at::TensorOptions(rank == 0 ? at::kDouble : at::kFloat));
    attempt(
        "dtype", [&] { return group.broadcast(other, 0); }, "rank 0: broadcast(source 0, Double [4])");
    attempt(
        "source", [&] { return group.broadcast(tensor, rank); }, "source 2");
    auto output = at::zeros({4});
    attempt(
        "pieces",
        [&] {
          return group.reduce_scatter(output, {wide, wide, wide});
        },
        "reduce_scatter");
    group.all_reduce(tensor).wait();  // the group still works
  });
  CHECK(facts.broken() == "");
}

TEST_CASE("threads: arguments are checked before anything is sent") {
  Facts facts;
  run_ranks(2, [&](int rank) {
    Group& group = World::current().group();
    auto good = at::zeros({2, 3});
    auto crossed = good.t();
    std::vector<at::Tensor> short_list = {good};
    std::vector<at::Tensor> mixed = {good, at::zeros({2, 3}, at::TensorOptions(at::kLong))};
    at::Tensor none;
    const auto refused = [&](const std::function<void()>& function, const std::string& part) {
      const auto text = message_of(function);
      facts.expect(contains(text, part), "'" + part + "' in: " + text);
    };
    refused([&] { group.all_reduce(crossed).wait(); }, "not contiguous");
    refused([&] { group.all_reduce(none).wait(); }, "undefined");
    refused([&] { group.all_gather(short_list, good).wait(); }, "outputs has 1 tensors for 2 ranks");
    refused([&] { group.all_gather(mixed, good).wait(); }, "outputs[1] is Long, but Float");
    refused([&] { group.broadcast(good, 2).wait(); }, "source 2 is not a rank");
    refused([&] { group.send(good, rank).wait(); }, "is this rank itself");
    facts.expect(group.sequence() == 0, "nothing was issued");
    group.all_reduce(good).wait();
  });
  CHECK(facts.broken() == "");
}

TEST_CASE("threads: one thread per rank issues on a group; a duplicate serves another") {
  Facts facts;
  run_ranks(2, [&](int rank) {
    World& world = World::current();
    Group& group = world.group();
    auto tensor = at::full({1}, 1.0 * rank);
    group.all_reduce(tensor).wait();
    std::string refusal;
    auto background = group.duplicate("checkpoint");
    facts.expect(group.duplicate("checkpoint") == background, "the same label gives the same group");
    std::thread other([&] {
      auto mine = at::full({1}, 1.0 * rank);
      refusal = message_of([&] { group.all_reduce(mine).wait(); });
      background->all_reduce(mine).wait();
      facts.expect(mine.item<double>() == 1, "the duplicate works");
    });
    other.join();
    facts.expect(contains(refusal, "another thread"), refusal);
    world.release_thread();
    std::thread heir([&] {
      auto mine = at::full({1}, 1.0 * rank);
      group.all_reduce(mine).wait();
    });
    heir.join();
  });
  CHECK(facts.broken() == "");
}
