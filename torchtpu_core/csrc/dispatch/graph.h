// A compiled graph: a callable of tensors and numbers that is keyed, built and run as one operator.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "program.h"

namespace torchtpu {

class Graph {
 public:
  // `lower` makes the plan of a call from its described arguments (compile/graph_program.py).
  // `name` stands in errors.
  Graph(std::string name, size_t num_inputs, pybind11::object lower);

  // The results of the graph for `args`, a list of tensors, numbers and None that is emptied: the
  // caller's references would keep saved tensors alive. Needs no GIL for a program that was met
  // before, but is called with it.
  // `random_blocks`: None, or a function that says how much this call draws, for a program that
  // draws by open sizes.
  pybind11::list call(const pybind11::list& args, const pybind11::object& random_blocks);

  size_t programs() const { return programs_.size(); }

 private:
  ProgramPtr find_or_build(c10::ArrayRef<c10::IValue> args, Call& call);

  const std::string name_;
  const std::vector<ArgumentTraits> traits_;  // of no run-time numbers
  const pybind11::object lower_;
  ProgramTable programs_;
};

}  // namespace torchtpu
