// A compiled program with the plan by which it is fed and its results wrapped, and the table that
// finds it again.
#pragma once

#include <c10/core/ScalarType.h>

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "../pjrt/executable.h"
#include "call.h"

namespace torchtpu {

struct InputPlan {
  enum Kind : uint8_t { kSlot, kHost, kScalar, kRandom } kind;
  uint32_t index;         // of the tensor or number
  c10::ScalarType dtype;  // of a number on the device
};

struct OutputPlan {
  c10::ScalarType dtype;
  Dims base;       // dims of the buffer
  Dims sizes;      // of the new tensor
  Dims strides;    //
  size_t nbytes;   // of the buffer
  int32_t tensor;  // whose slot receives the buffer; -1: a new tensor
};

struct ReturnPlan {
  enum Kind : uint8_t { kNone, kOutput, kOutputs, kArgument, kValue } kind;
  uint32_t index = 0;
  std::vector<uint32_t> list;
  c10::IValue value;  // a number
};

// Something that the program finds out about its data: its last result is i64[2n], for each check
// whether it failed and the value that did.
struct Check {
  bool index_error;  // IndexError; else RuntimeError
  std::string text;  // "{}" stands for the value
};

// A new tensor whose size along `dim` is data: the program has it at its bound.
struct Counted {
  uint32_t output;
  int64_t dim;
  Dims order;  // the dims of the tensor from slowest to fastest in memory
};

// Immutable once in a table.
struct Program {
  // How calls with this key run; only kRun has a program.
  enum Kind : uint8_t { kRun, kComposite, kHost } kind = kRun;
  std::shared_ptr<pjrt::LoadedExecutable> executable;
  std::vector<InputPlan> inputs;
  std::vector<OutputPlan> outputs;
  std::vector<ReturnPlan> returns;
  std::vector<int64_t> donate;   // inputs
  std::vector<Counted> counted;  // after the outputs the program returns their sizes, i64[n]
  std::vector<Check> checks;
  uint64_t random_blocks = 0;

  // What the executable returns; nothing is executed where that is nothing.
  size_t num_results() const { return outputs.size() + !counted.empty() + !checks.empty(); }
};

using ProgramPtr = std::shared_ptr<const Program>;

// Programs by key. `mutex_` guards the entries: readers share it. A program that was found stays
// valid while it is held; the table itself may let go of it (evict_programs).
class ProgramTable {
 public:
  ProgramTable();
  ~ProgramTable();
  ProgramTable(const ProgramTable&) = delete;
  ProgramTable& operator=(const ProgramTable&) = delete;

  ProgramPtr find(const Call& call) const;
  ProgramPtr insert(const Call& call, std::unique_ptr<Program> program);
  size_t size() const;

  // For evict_programs: when each entry was last used, and the removal of those not used since.
  void collect(std::vector<uint64_t>& uses) const;
  void erase_unused_since(uint64_t use);

 private:
  struct Entry {
    Key key;
    ProgramPtr program;
    mutable std::atomic<uint64_t> used;

    Entry(const Key& key, ProgramPtr program, uint64_t used)
        : key(key), program(std::move(program)), used(used) {}
  };
  struct Identity {
    size_t operator()(uint64_t h) const noexcept { return h; }
  };
  mutable std::shared_mutex mutex_;
  std::unordered_multimap<uint64_t, Entry, Identity> entries_;
};

// Lets go of the least recently used half of all programs where there are more than `most`: those
// are built again, from the persistent cache, when they are called again.
void evict_programs(size_t most);

}  // namespace torchtpu
