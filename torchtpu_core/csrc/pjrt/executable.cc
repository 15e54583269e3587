#include "executable.h"

namespace torchtpu::pjrt {

void Executable::reset() noexcept {
  if (executable_ == nullptr) return;
  Args<PJRT_Executable_Destroy_Args> args;
  args.executable = std::exchange(executable_, nullptr);
  discard(api_, api_->PJRT_Executable_Destroy(&args));
}

std::string Executable::name() const {
  Args<PJRT_Executable_Name_Args> args;
  args.executable = executable_;
  check(api_, api_->PJRT_Executable_Name(&args));
  return {args.executable_name, args.executable_name_size};
}

size_t Executable::num_outputs() const {
  Args<PJRT_Executable_NumOutputs_Args> args;
  args.executable = executable_;
  check(api_, api_->PJRT_Executable_NumOutputs(&args));
  return args.num_outputs;
}

std::vector<OutputSpec> Executable::outputs() const {
  Args<PJRT_Executable_OutputElementTypes_Args> types;
  types.executable = executable_;
  check(api_, require(api_->PJRT_Executable_OutputElementTypes,
                      "PJRT_Executable_OutputElementTypes")(&types));
  Args<PJRT_Executable_OutputDimensions_Args> dims;
  dims.executable = executable_;
  check(api_,
        require(api_->PJRT_Executable_OutputDimensions, "PJRT_Executable_OutputDimensions")(&dims));
  std::vector<OutputSpec> out;
  const int64_t* d = dims.dims;
  for (size_t i = 0; i < dims.num_outputs; ++i) {
    out.push_back({types.output_types[i], {d, d + dims.dim_sizes[i]}});
    d += dims.dim_sizes[i];
  }
  return out;
}

std::string Executable::serialize() const {
  Args<PJRT_Executable_Serialize_Args> args;
  args.executable = executable_;
  check(api_, api_->PJRT_Executable_Serialize(&args));
  auto free = [&](PJRT_SerializedExecutable* e) { args.serialized_executable_deleter(e); };
  const std::unique_ptr<PJRT_SerializedExecutable, decltype(free)> guard(args.serialized_executable,
                                                                         free);
  return {args.serialized_bytes, args.serialized_bytes_size};
}

std::string Executable::fingerprint() const {
  Args<PJRT_Executable_Fingerprint_Args> args;
  args.executable = executable_;
  check(api_, require(api_->PJRT_Executable_Fingerprint, "PJRT_Executable_Fingerprint")(&args));
  return {args.executable_fingerprint, args.executable_fingerprint_size};
}

Executable::Program Executable::optimized_program() const {
  Args<PJRT_Program> program;
  Args<PJRT_Executable_OptimizedProgram_Args> args;
  args.executable = executable_;
  args.program = &program;
  check(api_, api_->PJRT_Executable_OptimizedProgram(&args));
  Program out;
  out.format.assign(program.format, program.format_size);
  out.code.resize(program.code_size);
  program.code = out.code.data();
  check(api_, api_->PJRT_Executable_OptimizedProgram(&args));
  return out;
}

CompiledMemoryStats Executable::memory_stats() const {
  Args<PJRT_Executable_GetCompiledMemoryStats_Args> args;
  args.executable = executable_;
  check(api_, require(api_->PJRT_Executable_GetCompiledMemoryStats,
                      "PJRT_Executable_GetCompiledMemoryStats")(&args));
  return {.generated_code = args.generated_code_size_in_bytes,
          .arguments = args.argument_size_in_bytes,
          .outputs = args.output_size_in_bytes,
          .alias = args.alias_size_in_bytes,
          .temp = args.temp_size_in_bytes,
          .host_arguments = args.host_argument_size_in_bytes,
          .host_outputs = args.host_output_size_in_bytes,
          .host_temp = args.host_temp_size_in_bytes,
          .peak = args.peak_memory_in_bytes};
}

ValueMap Executable::cost_analysis() const {
  Args<PJRT_Executable_GetCostAnalysis_Args> args;
  args.executable = executable_;
  check(api_, api_->PJRT_Executable_GetCostAnalysis(&args));
  return to_map(args.properties, args.num_properties);
}

int64_t Executable::generated_code_size() const {
  Args<PJRT_Executable_SizeOfGeneratedCodeInBytes_Args> args;
  args.executable = executable_;
  check(api_, api_->PJRT_Executable_SizeOfGeneratedCodeInBytes(&args));
  return args.size_in_bytes;
}

namespace {
Executable executable_of(const PJRT_Api* api, PJRT_LoadedExecutable* loaded) {
  Args<PJRT_LoadedExecutable_GetExecutable_Args> args;
  args.loaded_executable = loaded;
  check(api, api->PJRT_LoadedExecutable_GetExecutable(&args));
  return Executable(api, args.executable);
}

void destroy(const PJRT_Api* api, PJRT_LoadedExecutable* loaded) noexcept {
  Args<PJRT_LoadedExecutable_Destroy_Args> args;
  args.executable = loaded;
  discard(api, api->PJRT_LoadedExecutable_Destroy(&args));
}
}  // namespace

LoadedExecutable::LoadedExecutable(const PJRT_Api* api, PJRT_LoadedExecutable* loaded,
                                   std::shared_ptr<const void> owner)
    : api_(api), loaded_(loaded), owner_(std::move(owner)) {
  try {
    executable_ = executable_of(api_, loaded_);
    num_outputs_ = executable_.num_outputs();
  } catch (...) {
    destroy(api_, loaded_);
    throw;
  }
}

LoadedExecutable::~LoadedExecutable() {
  executable_.reset();
  destroy(api_, loaded_);
}

void LoadedExecutable::execute_raw(PJRT_Buffer* const* args, size_t n, PJRT_Buffer** outs,
                                   PJRT_Device* device, const int64_t* non_donatable,
                                   size_t n_non_donatable, PJRT_Event** complete) const {
  Args<PJRT_ExecuteOptions> options;
  options.non_donatable_input_indices = non_donatable;
  options.num_non_donatable_input_indices = n_non_donatable;
  Args<PJRT_LoadedExecutable_Execute_Args> call;
  call.executable = loaded_;
  call.options = &options;
  call.argument_lists = &args;
  call.num_devices = 1;
  call.num_args = n;
  call.output_lists = &outs;
  call.device_complete_events = complete;
  call.execute_device = device;
  check(api_, api_->PJRT_LoadedExecutable_Execute(&call));
}

void LoadedExecutable::execute_sharded(PJRT_Buffer* const* const* args, size_t n,
                                       PJRT_Buffer** const* outs, size_t num_devices,
                                       const int64_t* non_donatable, size_t n_non_donatable,
                                       PJRT_Event** complete) const {
  Args<PJRT_ExecuteOptions> options;
  options.non_donatable_input_indices = non_donatable;
  options.num_non_donatable_input_indices = n_non_donatable;
  Args<PJRT_LoadedExecutable_Execute_Args> call;
  call.executable = loaded_;
  call.options = &options;
  call.argument_lists = args;
  call.num_devices = num_devices;
  call.num_args = n;
  call.output_lists = outs;
  call.device_complete_events = complete;
  check(api_, api_->PJRT_LoadedExecutable_Execute(&call));
}

std::vector<PJRT_Device*> LoadedExecutable::devices() const {
  Args<PJRT_LoadedExecutable_AddressableDevices_Args> args;
  args.executable = loaded_;
  check(api_, api_->PJRT_LoadedExecutable_AddressableDevices(&args));
  return {args.addressable_devices, args.addressable_devices + args.num_addressable_devices};
}

}  // namespace torchtpu::pjrt
