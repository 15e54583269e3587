// Executables of programs: from the persistent cache, else compiled.
#pragma once

#include <memory>
#include <string>

#include "../pjrt/client.h"
#include "../pjrt/executable.h"
#include "../pjrt/options.h"

namespace torchtpu {

// What the device compiles with on a client's plugin: a part of the cache's keys.
pjrt::CompileOptions compile_options(const pjrt::Client& client);

// The executable of a program, which is cached if it has to be compiled. Called with the GIL, which
// is released around the plugin's work.
std::shared_ptr<pjrt::LoadedExecutable> load_or_compile(const std::string& text);

// Begins to load, on a thread, the executable of a program that will soon be asked for, if it is in
// the persistent cache. Called with the GIL.
void load_ahead(const std::string& text);

// Waits for what is still being loaded, and lets go of what nobody asked for; how many they are.
// Called with the GIL.
size_t forget_ahead();

}  // namespace torchtpu
