// The slow path: what Python's lowering makes of an operator, and of one call of it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "program.h"

namespace torchtpu {

enum class Route : uint8_t {
  kLower = 0,
  kComposite = 1,
  kHost = 2,
  kUnsupported = 3,
  kUnknown = 255
};

struct Routing {
  Route route;
  std::vector<ArgumentTraits> traits;
  std::string reason;  // of kUnsupported
};

// Asks torchtpu_core.lowering.program.route. Takes the GIL.
Routing resolve_route(const c10::OperatorHandle& op);

struct Built {
  std::unique_ptr<Program> program;                               // or
  std::vector<std::pair<uint32_t, std::vector<int64_t>>> resize;  // out= tensors to resize first
  bool unsupported = false;                                       // or: not lowered, for `reason`
  std::string reason;
};

// Lowers and compiles the program of a call (persistent cache first). Takes the GIL for the
// lowering and releases it for the compiler. PyTorch's own errors come out as they are.
Built build(const c10::OperatorHandle& op, const std::vector<ArgumentTraits>& traits,
            c10::ArrayRef<c10::IValue> args, const Call& call);

// The same for a call of a compiled graph, whose plan `lower` makes; what it raises comes out as it
// is.
std::unique_ptr<Program> build_graph(const std::string& name, const pybind11::object& lower,
                                     c10::ArrayRef<c10::IValue> args, const Call& call);

}  // namespace torchtpu
