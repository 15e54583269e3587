// The C library's heap, where it is the device's memory (XLA's CPU plugin). Buffers and the
// temporaries of programs come from it, and by default each one that is large is mapped anew and
// given back to the system at its end: a train step spends a fifth of its time in pages that the
// system clears. Here they stay in the process for the next step, as on other devices.
#pragma once

namespace torchtpu::heap {

// From now on memory that is freed stays in the process. To be called before XLA starts its
// threads. Changes nothing where the user has settings for malloc in the environment
// (GLIBC_TUNABLES with glibc.malloc, MALLOC_*), or where the C library is another one.
void keep();
// Gives back what is free, if keep() was called.
void release();
// Gives back what is free where that is more than 2 GiB and more than what is in use. Takes up to
// a millisecond; for calls that are rare.
void bound();

}  // namespace torchtpu::heap
