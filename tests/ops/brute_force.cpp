#include "brute_force.h"

#include "combination_check.h"
#include "comm/policy.h"
#include "comm/run_ranks.h"
#include "meeting.h"
#include "ops/rule.h"
#include "placed_input.h"
#include "placements/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <regex>

namespace dtensor::brute {
namespace {

// All placements of one input on a mesh: one of its kinds for each mesh dimension.
std::vector<std::optional<Placements>> choices_for(const Sample& sample, const at::Tensor& input,
                                                   std::size_t index, std::size_t mesh_ndim) {
  PlacementKinds kinds;
  kinds.other_pending = sample.other_pending;
  kinds.interleaved = mesh_ndim == 1;  // nested in another cut only outermost
  const auto single = placements_for(input, kinds);
  std::vector<Placements> all = {{}};
  for (std::size_t dim = 0; dim < mesh_ndim; ++dim) {
    std::vector<Placements> longer;
    for (const auto& before : all)
      for (const auto& placement : single) {
        // Parts of unlike pending values are not made here.
        const auto unlike = [&](const Placement& other) { return other.is_partial() && other != placement; };
        if (placement.is_partial() && std::any_of(before.begin(), before.end(), unlike)) continue;
        longer.push_back(before);
        longer.back().push_back(placement);
      }
    all = std::move(longer);
  }
  std::vector<std::optional<Placements>> choices(all.begin(), all.end());
  if (sample.plain_inputs && (index > 0 || (!sample.in_place && sample.inputs().size() > 1)))
    choices.emplace_back();
  return choices;
}

// All combinations, or as many as the sample's limit, drawn by a fixed seed.
std::vector<Combination> combinations(const Sample& sample, std::size_t mesh_ndim) {
  const auto inputs = sample.inputs();
  std::vector<std::vector<std::optional<Placements>>> choices;
  double count = 1;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    choices.push_back(choices_for(sample, inputs[i], i, mesh_ndim));
    count *= static_cast<double>(choices.back().size());
  }
  const auto limit = mesh_ndim == 1 ? sample.limit : std::min<std::size_t>(sample.limit, 16);
  std::set<std::vector<std::size_t>> picks;
  if (count <= static_cast<double>(limit)) {
    for (std::size_t number = 0; number < static_cast<std::size_t>(count); ++number) {
      std::vector<std::size_t> pick;
      auto rest = number;
      for (const auto& choice : choices) {
        pick.push_back(rest % choice.size());
        rest /= choice.size();
      }
      picks.insert(pick);
    }
  } else {
    std::mt19937 engine(static_cast<unsigned>(std::hash<std::string>()(sample.label())));
    while (picks.size() < limit) {
      std::vector<std::size_t> pick;
      for (const auto& choice : choices) pick.push_back(engine() % choice.size());
      picks.insert(pick);
    }
  }
  std::vector<Combination> all;
  for (const auto& pick : picks) {
    Combination combination;
    for (std::size_t i = 0; i < pick.size(); ++i) combination.push_back(choices[i][pick[i]]);
    if (std::none_of(combination.begin(), combination.end(),
                     [](const auto& placements) { return placements; }))
      continue;
    all.push_back(std::move(combination));
  }
  return all;
}

std::string to_text(const Combination& combination) {
  std::string text;
  for (const auto& placements : combination)
    text += (text.empty() ? "" : " ") + (placements ? dtensor::to_string(*placements) : "plain");
  return text;
}

// The same text on all ranks when they fail alike.
std::string without_rank(const std::string& text) {
  static const std::regex rank(R"(rank \d+)");
  auto first = text.substr(0, text.find("\nException raised"));
  return std::regex_replace(first, rank, "rank");
}

struct Case {
  const Sample* sample;
  std::shared_ptr<const Reference> reference;
  Combination combination;
};

// Runs all cases on one mesh shape; starts a new World where ranks came apart.
class Runner {
 public:
  Runner(const Numbers& shape, std::vector<Case> cases) : shape_(shape), cases_(std::move(cases)) {}

  void run() {
    int parted = 0;
    while (next_ < cases_.size() && parted < 12) {
      try {
        run_world();
      } catch (const std::exception& error) {
        report(next_, fmt::format("the ranks came apart: {}", std::string(error.what()).substr(0, 1500)));
        ++next_;
        ++parted;
      }
    }
    if (next_ < cases_.size()) failures_ += fmt::format("\n{} cases were not run\n", cases_.size() - next_);
  }

  const std::string& failures() const { return failures_; }
  const std::map<const Sample*, Trace>& traces() const { return traces_; }
  std::size_t refused() const { return refused_; }

 private:
  static constexpr const char* refusal = "refused: ";

  void run_world() {
    const auto ranks = std::accumulate(shape_.begin(), shape_.end(), std::int64_t{1}, std::multiplies<>());
    Meeting meeting(static_cast<std::size_t>(ranks));
    RunRanksOptions options;
    options.timeout = std::chrono::seconds(10);
    const auto first = next_;
    run_ranks(
        static_cast<int>(ranks),
        [&](int rank) {
          const auto names =
              shape_.size() == 1 ? std::vector<std::string>{"tp"} : std::vector<std::string>{"dp", "tp"};
          const auto mesh = init_device_mesh(at::kCPU, shape_, names);
          const PolicyGuard guard({Fallback::allow, ImplicitMoves::allow, PlainTensors::replicate_checked});
          for (auto number = first; number < cases_.size(); ++number) {
            const auto note = run_case(number, mesh, rank);
            const auto notes = meeting.hold(static_cast<std::size_t>(rank), note);
            if (!notes) throw UnsupportedError(note.empty() ? "others did not come back" : note);
            if (rank == 0) judge(number, *notes);
            // Errors that differ leave the ranks' communication in different states.
            if (!alike(*notes)) throw CommError(fmt::format("{}", fmt::join(*notes, " / ")));
            if (!meeting.hold(static_cast<std::size_t>(rank), "")) throw CommError("a rank stopped");
          }
        },
        options);
  }

  std::string run_case(std::size_t number, const DeviceMesh& mesh, int rank) {
    const Case& one = cases_[number];
    Trace ignored;
    try {
      return check_combination(*one.sample, *one.reference, one.combination, mesh, number,
                               rank == 0 ? traces_[one.sample] : ignored);
    } catch (const CommError&) {
      throw;
    } catch (const Error& error) {
      return refusal + without_rank(error.what_without_backtrace());
    } catch (const c10::Error& error) {
      return "threw: " + without_rank(error.what_without_backtrace());
    } catch (const std::exception& error) {
      return "threw: " + without_rank(error.what());
    }
  }

  static bool threw(const std::string& note) {
    return note.rfind(refusal, 0) == 0 || note.rfind("threw: ", 0) == 0;
  }
  static bool alike(const std::vector<std::string>& notes) {
    for (const auto& note : notes)
      if ((threw(note) || threw(notes[0])) && note != notes[0]) return false;
    return true;
  }

  void judge(std::size_t number, const std::vector<std::string>& notes) {
    if (!alike(notes)) return;  // reported when the World ends
    next_ = number + 1;
    const Case& one = cases_[number];
    if (notes[0].rfind(refusal, 0) == 0 && one.sample->may_refuse(one.combination)) {
      ++refused_;
      return;
    }
    for (std::size_t rank = 0; rank < notes.size(); ++rank)
      if (!notes[rank].empty()) return report(number, fmt::format("rank {}: {}", rank, notes[rank]));
  }

  // The first failures of each sample; a wrong rule fails in many combinations.
  void report(std::size_t number, const std::string& text) {
    const Case& one = cases_[number];
    if (++reported_[one.sample] > 2) return;
    failures_ += fmt::format("\n{} placed {} on ({}): {}\n", one.sample->label(), to_text(one.combination),
                             fmt::join(shape_, ", "), text);
  }

  const Numbers& shape_;
  std::vector<Case> cases_;
  std::size_t next_ = 0, refused_ = 0;
  std::string failures_;
  std::map<const Sample*, int> reported_;
  std::map<const Sample*, Trace> traces_;
};

// Rules that a sample names and never reached with a rule.
std::string unreached(const Sample& sample, const Trace& trace) {
  if (sample.fallback) return "";
  auto names = sample.reached;
  if (!sample.program) names.push_back(sample.op);
  std::string text;
  for (const auto& name : names) {
    const auto* rule = find_rule(name);
    if (rule && rule->decompose) continue;
    if (!trace.with_rule.count(name))
      text += fmt::format("\n{}: {} never ran with a rule{}\n", sample.label(), name,
                          trace.without_rule.count(name) ? ", but without one" : "");
  }
  return text;
}

}  // namespace

std::string SampleFile::failures(const Numbers& mesh_shape) const {
  const auto start = std::chrono::steady_clock::now();
  std::vector<Case> cases;
  std::string text;
  for (const auto& one : samples()) {
    std::shared_ptr<const Reference> reference;
    try {
      reference = std::make_shared<Reference>(make_reference(one));
    } catch (const std::exception& error) {
      text += fmt::format("\n{}: the plain operator throws: {}\n", one.label(),
                          std::string(error.what()).substr(0, 400));
      continue;
    }
    for (auto& combination : combinations(one, mesh_shape.size()))
      cases.push_back({&one, reference, std::move(combination)});
  }
  const auto count = cases.size();
  Runner runner(mesh_shape, std::move(cases));
  runner.run();
  text += runner.failures();
  std::set<std::string> without_rule;
  for (const auto& [one, trace] : runner.traces()) {
    if (mesh_shape.size() == 1) text += unreached(*one, trace);
    without_rule.insert(trace.without_rule.begin(), trace.without_rule.end());
  }
  const char* verbose = std::getenv("DTENSOR_BRUTE_FORCE");
  if (verbose && std::string(verbose) == "verbose")
    fmt::print(stderr,
               "{} on ({}): {} samples, {} combinations, {} refused, {:.1f} s; without a rule: {}\n{}", name_,
               fmt::join(mesh_shape, ", "), samples().size(), count, runner.refused(),
               std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
               fmt::join(without_rule, " "), text);
  return text;
}

}  // namespace dtensor::brute
