// GPT and a Llama-like model under every form of tensor parallelism against plain LibTorch: 20 steps in float64, and the
// collectives of a block against the formulas in docs/parallelize.md.
#include "models.h"

#include <parallelize/all.h>

#include <c10/util/accumulate.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <map>
#include <tuple>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

constexpr int steps = 20;
constexpr std::int64_t batch_size = 2;

ModelOptions options_of(bool llama, bool packed, bool tied) {
  ModelOptions options;
  options.llama = llama;
  options.packed = packed;
  options.tied = tied;
  if (llama) options.hidden = 48, options.heads = 24;  // two query heads per key-value head
  return options;
}

struct Run {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;
};

// `place_tokens` brings a batch onto the mesh, or returns it.
Run train(LanguageModel& model, const ModelOptions& options, const std::function<at::Tensor(const at::Tensor&)>& place_tokens) {
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  Run run;
  for (int step = 0; step < steps; ++step) {
    auto batch = token_batch(batch_size, options.sequence, options.vocabulary, step);
    batch = {place_tokens(batch.inputs), place_tokens(batch.targets)};
    optimizer.zero_grad();
    const auto loss = loss_of(model, batch);
    loss.backward();
    optimizer.step();
    run.losses.push_back(whole(loss).item<double>());
  }
  for (const auto& p : model->named_parameters()) run.parameters[p.key()] = whole(p.value());
  return run;
}

// How many calls and bytes of one kind; without what gradient synchronisation and checks add.
struct Traffic {
  std::int64_t calls = 0, bytes = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};
using Tally = std::map<std::string, Traffic>;

void take(Tally& tally, const std::string& phase, const CollectiveCounter& counter) {
  for (const auto& [key, entry] : counter.tallies()) {
    if (key.reason == "check") continue;
    auto& traffic = tally[(key.reason == "gradient" ? "gradient" : phase) + " " + to_string(key.collective)];
    traffic.calls += entry.calls;
    traffic.bytes += entry.bytes;
  }
}

std::string describe_tally(const Tally& tally) {
  std::string text;
  for (const auto& [name, traffic] : tally) text += fmt::format("{}: {} calls, {} bytes\n", name, traffic.calls, traffic.bytes);
  return text;
}

// `shape`: of the tensor-parallel mesh dimensions.
Tally count_step(ModelOptions options, std::int64_t layers, const std::vector<std::int64_t>& shape, bool sequence_parallel,
                 bool loss_parallel) {
  options.layers = layers;
  Tally first;
  run_ranks(static_cast<int>(c10::multiply_integers(shape)), [&](int rank) {
    const auto names = shape.size() == 1 ? std::vector<std::string>{"tp"} : std::vector<std::string>{"heads", "group"};
    const auto mesh = init_device_mesh(at::kCPU, shape, names);
    LanguageModel model(options);
    auto plan = plan_of(options, sequence_parallel, loss_parallel);
    plan.tensor_parallel_dims = names;
    parallelize_module(*model, mesh, plan);
    const Placements whole(shape.size(), Replicate());
    auto batch = token_batch(batch_size, options.sequence, options.vocabulary);
    batch = {place(batch.inputs, mesh, whole), place(batch.targets, mesh, whole)};
    loss_of(model, batch).backward();  // the first step also compares plain tensors
    for (auto& p : model->parameters()) p.mutable_grad() = at::Tensor();
    Tally mine;
    const CollectiveCounter forward;
    const auto loss = loss_of(model, batch);
    take(mine, "forward", forward);
    const CollectiveCounter backward;
    loss.backward();
    take(mine, "backward", backward);
    if (rank == 0) first = mine;
  });
  return first;
}

// What one block adds to a step.
Tally count_block(const ModelOptions& options, const std::vector<std::int64_t>& shape, bool sequence_parallel, bool loss_parallel) {
  Tally block = count_step(options, 2, shape, sequence_parallel, loss_parallel);
  for (const auto& [name, traffic] : count_step(options, 1, shape, sequence_parallel, loss_parallel)) {
    block[name].calls -= traffic.calls;
    block[name].bytes -= traffic.bytes;
  }
  std::erase_if(block, [](const auto& entry) { return entry.second == Traffic{}; });
  return block;
}

}  // namespace

TEST_CASE("20 steps of GPT and Llama equal plain LibTorch") {
  const bool llama = GENERATE(false, true);
  std::map<std::tuple<bool, bool>, Run> plain;
  for (int ways = 0; ways < 16; ++ways) {
    const bool sequence_parallel = ways & 1, loss_parallel = ways & 2, packed = ways & 4, tied = ways & 8;
    const auto options = options_of(llama, packed, tied);
    auto& expected = plain[{packed, tied}];
    if (expected.losses.empty()) {
      LanguageModel model(options);
      expected = train(model, options, [](const at::Tensor& tokens) { return tokens; });
      CHECK(expected.losses.back() < 0.9 * expected.losses.front());
    }
    for (const int tp : {1, 2, 3, 4}) {
      INFO((llama ? "Llama" : "GPT") << ", tp " << tp << ", sequence parallel " << sequence_parallel << ", loss parallel "
                                     << loss_parallel << ", packed " << packed << ", tied " << tied);
      const auto run = [&] {
        run_ranks(tp, [&](int) {
          const auto mesh = line(tp);
          LanguageModel model(options);
          parallelize_module(*model, mesh, plan_of(options, sequence_parallel, loss_parallel));
          std::optional<LossParallel> scope;
          if (loss_parallel) scope.emplace();
          const auto got = train(model, options, [&](const at::Tensor& t) { return place(t, mesh, {Replicate()}); });
          for (int step = 0; step < steps; ++step) {
            const auto at = static_cast<std::size_t>(step);
            check(std::abs(got.losses[at] - expected.losses[at]) <= 1e-9, fmt::format("loss of step {}", step));
          }
          for (const auto& [name, value] : expected.parameters)
            check((got.parameters.at(name) - value).abs().max().item<double>() <= 1e-9, name);
        });
      };
      CHECK_NOTHROW(run());
    }
  }
}

TEST_CASE("fewer key-value heads than ranks: every rank holds all of them and uses those of its query heads") {
  auto options = options_of(true, false, false);
  for (const std::int64_t kv_heads : {1, 2}) {
    options.kv_heads = kv_heads;
    LanguageModel plain(options);
    const auto expected = train(plain, options, [](const at::Tensor& tokens) { return tokens; });
    for (const bool sequence_parallel : {false, true})
      for (const int tp : {2, 3, 4}) {
        INFO(kv_heads << " key-value heads, tp " << tp << ", sequence parallel " << sequence_parallel);
        const auto run = [&] {
          run_ranks(tp, [&](int) {
            const auto mesh = line(tp);
            LanguageModel model(options);
            auto& attention = *model->blocks[0]->as<TransformerBlock>()->attn;
            // Cut, some rank would hold part of a head: the check says what to do instead.
            const auto cut = refusal_of<PlanError>(
                [&] {
                  auto plan = plan_of(options, sequence_parallel, true);
                  for (auto& rule : plan.rules) {
                    rule.style.share_kv_heads = false;
                    if (rule.style.kv_heads != 0) rule.style.kv_heads = 1;
                  }
                  parallelize_module(*model, mesh, plan);
                },
                "one key-value head on several ranks");
            check_contains(cut, "or \"share_kv_heads\": true: every rank then holds all 1");
            parallelize_module(*model, mesh, plan_of(options, sequence_parallel, true));
            const bool whole_weight = kv_heads % tp != 0;
            check_placed(attention.wk->weight, {whole_weight ? Placement(Replicate()) : Placement(Shard(0))}, "key weights");
            const auto got = train(model, options, [&](const at::Tensor& t) { return place(t, mesh, {Replicate()}); });
            for (const auto& [name, value] : expected.parameters)
              check((got.parameters.at(name) - value).abs().max().item<double>() <= 1e-9, name);
            // Query heads stay where they are.
            const auto x = place(values({2, 12, 48}), mesh, {Replicate()});
            const at::NoGradGuard no_grad;
            attention.forward(x);
            const CollectiveCounter counter;
            attention.forward(x);
            check(counter.total() == 1, "one collective forward, not " + counter.to_string());
          });
        };
        CHECK_NOTHROW(run());
      }
  }
}

TEST_CASE("fewer key-value heads than ranks: over two mesh dimensions, groups of ranks hold the same ones") {
  auto options = options_of(true, false, false);
  struct Ways {
    std::vector<std::int64_t> shape;  // data x heads x ranks of a group
    std::int64_t kv_heads;
  };
  for (const Ways& ways : {Ways{{1, 2, 2}, 2}, Ways{{1, 2, 3}, 2}, Ways{{1, 2, 2}, 4}, Ways{{1, 2, 2}, 1}, Ways{{2, 2, 2}, 2}}) {
    options.kv_heads = ways.kv_heads;
    LanguageModel plain(options);
    const auto expected = train(plain, options, [](const at::Tensor& tokens) { return tokens; });
    for (const bool sequence_parallel : {false, true}) {
      INFO(ways.kv_heads << " key-value heads on " << ways.shape[0] << " x " << ways.shape[1] << " x " << ways.shape[2]
                         << ", sequence parallel " << sequence_parallel);
      const auto run = [&] {
        run_ranks(static_cast<int>(ways.shape[0] * ways.shape[1] * ways.shape[2]), [&](int) {
          const auto mesh = init_device_mesh(at::kCPU, ways.shape, {"dp", "heads", "group"});
          auto plan = plan_of(options, sequence_parallel, true);
          plan.tensor_parallel_dims = {"heads", "group"};
          plan.data_parallel = DataParallel{};
          LanguageModel model(options);
          parallelize_module(*model, mesh, plan);
          const auto& attention = *model->blocks[0]->as<TransformerBlock>()->attn;
          const auto cut_if = [](bool cut) { return cut ? Placement(Shard(0)) : Placement(Replicate()); };
          check_placed(attention.wq->weight, {Replicate(), Shard(0), Shard(0)}, "query weights");
          check_placed(attention.wk->weight, {Replicate(), cut_if(ways.kv_heads % 2 == 0), cut_if(ways.kv_heads % 4 == 0)},
                       "key weights");
          const Placements batch{Shard(0), Replicate(), Replicate()};
          const auto got = train(model, options, [&](const at::Tensor& t) { return place(t, mesh, batch); });
          for (const auto& [name, value] : expected.parameters)
            check((got.parameters.at(name) - value).abs().max().item<double>() <= 1e-9, name);
        });
      };
      CHECK_NOTHROW(run());
    }
  }
}

TEST_CASE("collectives of a block equal the formulas") {
  const bool llama = GENERATE(false, true), packed = GENERATE(false, true);
  const bool sequence_parallel = GENERATE(false, true), loss_parallel = GENERATE(false, true);
  const int tp = GENERATE(1, 2, 3, 4);
  const auto options = options_of(llama, packed, false);
  const auto block = count_block(options, {tp}, sequence_parallel, loss_parallel);

  const std::int64_t bytes = batch_size * options.sequence * options.hidden * 8;  // of an activation
  Tally expected;
  if (tp > 1 && !sequence_parallel) {
    expected["forward all_reduce"] = expected["backward all_reduce"] = {2, 2 * bytes};
  } else if (tp > 1) {
    const Traffic twice{2, 2 * bytes * (tp - 1) / tp};
    for (const char* name : {"forward all_gather", "forward reduce_scatter", "backward all_gather", "backward reduce_scatter"})
      expected[name] = twice;
    // Norms, and the biases of rowwise Linears, ride in one all-reduce for the whole model.
    expected["gradient all_reduce"] = {0, (llama ? 2 : 6) * options.hidden * 8};
  }
  INFO("tp " << tp << "\n" << describe_tally(block));
  CHECK((block == expected));
}

TEST_CASE("over two mesh dimensions the collectives of a block are as many") {
  const bool sequence_parallel = GENERATE(false, true);
  auto options = options_of(true, false, false);
  options.kv_heads = 2;
  const auto one = count_block(options, {4}, sequence_parallel, true);
  auto two = count_block(options, {2, 2}, sequence_parallel, true);
  // Of gradients of key and value weights, half as much is pending: the heads of one group.
  const auto kv_bytes = 2 * options.hidden / options.heads * options.kv_heads * options.hidden * 8;
  const auto norm_bytes = sequence_parallel ? 2 * options.hidden * 8 : 0;
  INFO("one\n" << describe_tally(one) << "two\n" << describe_tally(two));
  CHECK((one.at("gradient all_reduce") == Traffic{0, kv_bytes + norm_bytes}));
  CHECK((two.at("gradient all_reduce") == Traffic{0, kv_bytes / 2 + norm_bytes}));
  two["gradient all_reduce"] = one.at("gradient all_reduce");
  CHECK((one == two));
}
