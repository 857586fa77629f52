#include <parallelize/all.h>
#include <support/check.h>
#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

#include <c10/util/Exception.h>

#include <mutex>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

using Data = std::map<std::string, at::Tensor>;
using Keys = std::vector<std::string>;

// Collects what LibTorch warns of, on any thread.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    const std::lock_guard lock(mutex_);
    text_ += warning.msg() + "\n";
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

}  // namespace

TEST_CASE("broadcast_data: values, sizes and types of coordinate 0 of each group") {
  for (const int ranks : {1, 2, 3})
    run_ranks(2 * ranks, [ranks](int) {
      const auto mesh = init_device_mesh(at::kCPU, {2, ranks}, {"dp", "tp"});
      const auto dp = static_cast<int>(mesh.coordinate("dp"));
      for (const auto dtype :
           {at::kLong, at::kInt, at::kFloat, at::kDouble, at::kBFloat16, at::kBool, at::kComplexFloat}) {
        const auto number = at::full({}, 1, at::kLong).to(dtype);
        // Each group has data of its own, of other sizes; one tensor is not contiguous, one is empty, one a number.
        const Data whole{{"tokens", values({3 + dp, 4}, dp).to(dtype)},
                         {"labels", values({4, 5}, 1 + dp).to(dtype).t()},
                         {"empty", at::empty({0, 3}, dtype)},
                         {"number", number},
                         {"not asked for", at::ones({2})}};
        const Keys keys{"tokens", "labels", "empty", "number"};
        const CollectiveCounter counter;
        const auto result = broadcast_data(keys, mesh.coordinate("tp") == 0 ? whole : Data(), dtype, mesh);
        check(result.size() == keys.size(), "the keys asked for");
        for (const auto& key : keys) {
          const auto& tensor = result.at(key);
          check(tensor.scalar_type() == dtype && at::equal(tensor, whole.at(key)), key);
          check(tensor.is_contiguous() && !is_dtensor(tensor), key + ": a plain tensor");
        }
        check(counter.total() == (ranks == 1 ? 0 : 3) && counter.count(Collective::broadcast) == (ranks > 1),
              counter.to_string());
      }
      check(broadcast_data({}, {}, at::kLong, mesh).empty(), "no keys");
    });
}

TEST_CASE("broadcast_data: what ranks get is theirs, and makes a batch") {
  run_ranks(4, [](int) {
    const auto mesh = grid(2, 2);
    const Data whole{{"x", counting({2, 3})}, {"y", counting({2})}};
    auto result = broadcast_data({"x", "y"}, whole, at::kDouble, mesh, "tp");  // every rank may bring data
    const auto version = result["y"]._version();
    result["x"].add_(1);
    check(result["y"]._version() == version && at::equal(result["y"], whole.at("y")),
          "apart from each other");
    check(at::equal(whole.at("x"), counting({2, 3})), "apart from the data");
    check_close(distribute_batch(result["x"], mesh), at::cat({counting({2, 3}) + 1, counting({2, 3}) + 1}),
                "batch");
  });
}

TEST_CASE("broadcast_data: other keys, types or data are named, on all ranks") {
  run_ranks(3, [](int rank) {
    const auto mesh = line(3);
    const Data whole{{"tokens", at::ones({2}, at::kLong)}, {"labels", at::ones({2}, at::kLong)}};
    const Data data = rank == 0 ? whole : Data();
    const auto refused = [&](const Keys& keys, const Data& mine, at::ScalarType dtype,
                             const std::vector<std::string>& parts) {
      const CollectiveCounter counter;
      const auto text = error_of<DesyncError>([&] { broadcast_data(keys, mine, dtype, mesh); }, parts[0]);
      for (const auto& part : parts) check_contains(text, part);
      check(counter.count(Collective::broadcast) == 0, "no value was sent");
    };
    refused(rank == 2 ? Keys{"tokens", "label"} : Keys{"tokens", "labels"}, data, at::kLong,
            {"rank 2 asks for the keys [tokens, label], rank 0 for [tokens, labels]"});
    refused({"tokens"}, data, rank == 1 ? at::kInt : at::kLong,
            {"rank 1 asks for type Int, rank 0 for Long"});
    refused({"tokens", "lables"}, data, at::kLong,
            {"rank 0 has no 'lables', only [labels, tokens]", "did you mean \"labels\""});
    refused({"tokens", "labels"}, data, at::kFloat,
            {"rank 0 has 'tokens' of type Long, but Float is asked for", "rank 0 has 'labels' of type Long"});
    refused({"tokens"}, rank == 1 ? Data{{"tokens", at::ones({2})}} : data, at::kLong,
            {"rank 1 has 'tokens' of type Float"});
    refused({"tokens"}, rank == 2 ? Data{{"token", at::ones({2}, at::kLong)}} : data, at::kLong,
            {"rank 2 has no 'tokens', only [token]"});
    // Several at once, and keys in another order are other keys.
    refused(rank == 1 ? Keys{"labels", "tokens"} : Keys{"tokens", "labels"}, data,
            rank == 2 ? at::kInt : at::kLong,
            {"rank 1 asks for the keys [labels, tokens]", "rank 2 asks for type Int"});
    Data placed{{"tokens", rank == 0
                               ? at::Tensor(from_local(at::ones({2}, at::kLong), line(3), {Replicate()}))
                               : at::ones({2}, at::kLong)}};
    refused({"tokens"}, placed, at::kLong, {"rank 0 has 'tokens' as a DTensor"});
    // And the group is still of use.
    check(at::equal(broadcast_data({"tokens"}, data, at::kLong, mesh).at("tokens"), whole.at("tokens")),
          "afterwards");
    error_of<MeshError>([&] { broadcast_data({"tokens"}, data, at::kLong, mesh, "pp"); },
                        "no such dimension");
  });
}

TEST_CASE("broadcast_data: no graph and no warning, for data that requires grad") {
  Warnings warnings;
  c10::WarningUtils::set_warning_handler(&warnings);
  std::exception_ptr failure;
  try {
    run_ranks(2, [&](int rank) {
      const c10::WarningUtils::WarningHandlerGuard guard(&warnings);  // handlers belong to threads
      const auto mesh = line(2);
      auto x = values({3, 4}).set_requires_grad(true);
      const auto result =
          broadcast_data({"x"}, rank == 0 ? Data{{"x", x}, {"y", x * 2}} : Data(), at::kDouble, mesh);
      auto received = result.at("x");
      check(!received.requires_grad() && received.is_leaf(), "no graph");
      check(at::equal(received, x.detach()), "values");
      received.set_requires_grad(true);
      (received * 3).sum().backward();
      check(at::equal(received.grad(), at::full({3, 4}, 3, at::kDouble)), "a leaf of its own");
      check(!x.grad().defined(), "nothing flows back");
    });
  } catch (...) {
    failure = std::current_exception();
  }
  c10::WarningUtils::set_warning_handler(nullptr);
  if (failure) std::rethrow_exception(failure);
  CHECK(warnings.text() == "");
}
