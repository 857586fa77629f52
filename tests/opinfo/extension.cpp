// The Python module dtensor_opinfo: what worker.py needs of the library. Ranks are threads, each calls one Python
// function. Python's lock must be free while an operator runs, so that ranks that wait for each other in a collective do
// not block the ones that are still on their way (see `unlocked`). All that may communicate here releases it too.
#include <dtensor/dtensor.h>
#include <dtensor/explain.h>
#include <dtensor/fallback.h>

#include <comm/counters.h>
#include <comm/policy.h>
#include <comm/run_ranks.h>
#include <comm/world.h>

#include <ATen/ops/isfinite.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace py = pybind11;

namespace dtensor::opinfo {
namespace {

// How a rank's call ended. `alone`: it threw, and some other rank neither returned nor threw for a while after that,
// because it waits for this one in a collective. Left to themselves they would never have ended.
struct RankEnd {
  py::object value;
  std::optional<std::string> error;
  bool alone = false;
};

// Lets a rank that threw wait for the others to end by themselves before its error stops them: ranks that refuse alike
// must each be seen to refuse.
class Ends {
 public:
  explicit Ends(int ranks) : left_(ranks) {}
  void note() {
    const std::lock_guard lock(mutex_);
    --left_;
    changed_.notify_all();
  }
  bool all_within(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [&] { return left_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int left_;
};

// LibTorch's bindings release Python's lock inside an operator, but for those of indexing (x[1:]) and a few more. So
// rank threads run under a dispatch key that LibTorch keeps for tests: it comes before all others, and its kernel, this
// one for all operators, releases the lock where that was not done.
constexpr auto unlocking = c10::DispatchKey::TESTING_ONLY_GenericMode;
void unlocked(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(unlocking);
  std::optional<py::gil_scoped_release> unlock;
  if (PyGILState_Check()) unlock.emplace();
  op.callBoxed(stack);
}

std::string text_of(const py::error_already_set& error) {
  return py::str(error.type().attr("__name__")).cast<std::string>() + ": " + py::str(error.value()).cast<std::string>();
}

// Calls `function(rank)` on rank threads. One entry per rank: (value, None, False) or (None, error, alone).
std::vector<py::tuple> run_ranks(int ranks, const py::function& function, double timeout_seconds,
                                 double patience_seconds) {
  const auto milliseconds = [](double seconds) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  };
  std::vector<RankEnd> ends(static_cast<std::size_t>(ranks));
  Ends ended(ranks);
  const auto body = [&](int rank) {
    RankEnd& end = ends[static_cast<std::size_t>(rank)];
    const PolicyGuard quiet({Fallback::allow, ImplicitMoves::allow, PlainTensors::replicate_checked});
    {
      const c10::impl::IncludeDispatchKeyGuard unlocking_operators(unlocking);
      const py::gil_scoped_acquire lock;
      try {
        end.value = function(rank);
      } catch (py::error_already_set& error) {
        end.error = text_of(error);
      }
    }
    ended.note();
    if (!end.error) return;
    end.alone = !ended.all_within(milliseconds(patience_seconds));
    throw std::runtime_error(*end.error);
  };
  {
    const py::gil_scoped_release unlock;
    try {
      dtensor::run_ranks(ranks, body, {.timeout = milliseconds(timeout_seconds)});
    } catch (const std::exception&) {
      // Told rank by rank below.
    }
  }
  std::vector<py::tuple> result;
  for (auto& end : ends)
    result.push_back(py::make_tuple(end.value ? end.value : py::none(), py::cast(end.error), end.alone));
  return result;
}

struct RankMesh {
  std::optional<DeviceMesh> mesh;
};
// The mesh of the calling rank; one World has one.
DeviceMesh rank_mesh(const std::vector<std::int64_t>& shape) {
  auto& slot = World::current().slot<RankMesh>();
  if (!slot.mesh) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < shape.size(); ++i) names.push_back("dim" + std::to_string(i));
    slot.mesh = init_device_mesh(c10::DeviceType::CPU, shape, names);
  }
  return *slot.mesh;
}

// This coordinate's share of a pending sum, as a multiple of the value: 2, -2, ..., 2, -1, whose sum is 1 whatever the
// order, and exact in integers and floats. No share is zero, so that an operator that forgets the sum is found out.
std::int64_t share(std::int64_t coordinate, std::int64_t ranks) {
  if (coordinate == ranks - 1) return ranks % 2 == 0 ? -1 : 1;
  return coordinate % 2 == 0 ? 2 : -2;
}

// A leaf placed so; every rank has the same `full`, and nothing is sent.
at::Tensor distribute(const at::Tensor& full, const std::vector<std::int64_t>& mesh_shape,
                      const std::vector<std::string>& names) {
  const py::gil_scoped_release unlock;
  const auto mesh = rank_mesh(mesh_shape);
  Placements placements, settled;
  std::int64_t multiple = 1;
  for (std::size_t i = 0; i < names.size(); ++i) {
    placements.push_back(Placement::parse(names[i]));
    settled.push_back(placements[i].is_partial() ? Replicate() : placements[i]);
    if (placements[i].is_partial()) multiple *= share(mesh.coordinate()[i], mesh_shape[i]);
  }
  const auto value = full.detach();
  if (placements == settled) return distribute_tensor(value, mesh, placements, {.source = std::nullopt});
  // Infinities would add up to NaN: these pending sums are zero but on the first coordinate.
  if (!at::isfinite(value).all().item<bool>())
    return distribute_tensor(value, mesh, settled, {.source = std::nullopt}).redistribute(placements);
  const auto part = distribute_tensor(value.mul(multiple), mesh, settled, {.source = std::nullopt});
  return from_local(part.to_local({.grad_placements = settled}), mesh, placements,
                    {.global_sizes = value.sizes().vec()});
}

at::Tensor full(const at::Tensor& tensor) {
  const py::gil_scoped_release unlock;
  const auto distributed = try_dtensor(tensor.detach());
  return distributed ? distributed->full_tensor() : tensor.detach();
}

// None for a plain tensor.
std::optional<std::vector<std::string>> placements(const at::Tensor& tensor) {
  const auto distributed = try_dtensor(tensor);
  if (!distributed) return std::nullopt;
  std::vector<std::string> names;
  for (const auto& placement : distributed->placements()) names.push_back(placement.to_string());
  return names;
}

std::int64_t local_bytes(const at::Tensor& tensor) {
  const py::gil_scoped_release unlock;
  const auto distributed = DTensor(tensor.detach());
  const auto local = distributed.to_local({.grad_placements = distributed.placements()});
  return local.numel() * local.element_size();
}

// What this rank did between __enter__ and __exit__, on one thread.
class Record {
 public:
  void enter() {
    counter_.emplace();
    explain_.emplace();
  }
  void exit() {
    for (const auto& entry : explain_->operators()) {
      if (entry.fallback) fallbacks_[entry.name] += 1;
      operators_.push_back(py::make_tuple(entry.name, entry.inputs, entry.outputs, entry.fallback));
    }
    explain_.reset();
    collectives_ = counter_->total();
    bytes_ = counter_->bytes();
    // In-place and out= forms are not explained, but counted.
    for (const auto& [name, count] : detail::fallback_counts(World::current())) fallbacks_[name] += count;
  }

  std::optional<CollectiveCounter> counter_;
  std::optional<Explain> explain_;
  std::vector<py::tuple> operators_;
  std::map<std::string, std::int64_t> fallbacks_;
  std::int64_t collectives_ = 0, bytes_ = 0;
};

}  // namespace
}  // namespace dtensor::opinfo

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&dtensor::opinfo::unlocked>());
}

PYBIND11_MODULE(dtensor_opinfo, module) {
  using namespace dtensor::opinfo;
  module.def("run_ranks", &run_ranks, py::arg("ranks"), py::arg("function"), py::arg("timeout_seconds"),
             py::arg("patience_seconds"));
  module.def("distribute", &distribute);
  module.def("full", &full);
  module.def("placements", &placements);
  module.def("local_bytes", &local_bytes);
  py::class_<Record>(module, "Record")
      .def(py::init<>())
      .def("__enter__",
           [](py::object self) {
             self.cast<Record&>().enter();
             return self;
           })
      .def("__exit__", [](Record& record, const py::args&) { record.exit(); })
      .def_readonly("operators", &Record::operators_)
      .def_readonly("fallbacks", &Record::fallbacks_)
      .def_readonly("collectives", &Record::collectives_)
      .def_readonly("bytes", &Record::bytes_);
}
