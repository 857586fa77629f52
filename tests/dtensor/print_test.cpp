#include <support/check.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

TEST_CASE("printing a DTensor shows how it is placed and what this rank holds, and never communicates") {
  run_ranks(2, [](int rank) {
    const auto mesh = line(2);
    const auto full = counting({4, 2});
    const auto sharded = place(full, mesh, {Shard(0)}), whole_one = place(full, mesh, {Replicate()});
    const CollectiveCounter counter;
    std::ostringstream stream, plain;
    stream << sharded << "\n" << whole_one;
    check(counter.total() == 0, "no communication");
    check_contains(stream.str(), "Shard(0)");
    check_contains(stream.str(), "tp=2");
    check_contains(stream.str(), "Replicate");
    plain << full.narrow(0, 2 * rank, 2);
    check_contains(to_string(sharded), plain.str());
    plain.str("");
    plain << full;
    check_contains(to_string(whole_one), plain.str());
    auto x = leaf(full, mesh, {Shard(0)});
    check_contains(to_string(as_dtensor(x * 2)), "Shard(0)");
  });
}

TEST_CASE("printing a DTensor as at::Tensor shows nothing wrong: it is refused on every rank alike") {
  run_ranks(2, [](int) {
    for (const auto& placement : {Shard(0), Replicate(), Partial()}) {
      const at::Tensor tensor = place(counting({4, 2}), line(2), {placement});
      std::ostringstream stream;
      refusal_of<c10::Error>([&] { stream << tensor; }, placement.to_string());
      check(!tensor.toString().empty(), "toString");
    }
  });
}

TEST_CASE("ranks outside the mesh print the summary alone") {
  run_ranks(3, [](int rank) {
    const auto text = to_string(zeros({4, 2}, line(2), {Shard(0)}));
    check_contains(text, "Shard(0)");
    check((text.find('\n') == std::string::npos) == (rank == 2), text);
  });
}
