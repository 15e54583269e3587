#include "event.h"

#include <memory>

namespace torchtpu::pjrt {

void Event::reset() noexcept {
  if (event_ == nullptr) return;
  Args<PJRT_Event_Destroy_Args> args;
  args.event = std::exchange(event_, nullptr);
  discard(api_, api_->PJRT_Event_Destroy(&args));
}

void Event::await() const {
  if (event_ == nullptr) return;
  Args<PJRT_Event_Await_Args> args;
  args.event = event_;
  check(api_, api_->PJRT_Event_Await(&args));
}

bool Event::is_ready() const {
  if (event_ == nullptr) return true;
  Args<PJRT_Event_IsReady_Args> args;
  args.event = event_;
  check(api_, api_->PJRT_Event_IsReady(&args));
  return args.is_ready;
}

namespace {
struct Pending {
  const PJRT_Api* api;
  std::function<void(const Error*)> callback;
};

void notify(PJRT_Error* error, void* user_arg) noexcept {
  std::unique_ptr<Pending> pending(static_cast<Pending*>(user_arg));
  if (error == nullptr) {
    pending->callback(nullptr);
  } else {
    const Error e = take_error(pending->api, error);
    pending->callback(&e);
  }
}
}  // namespace

void Event::on_ready(std::function<void(const Error*)> callback) const {
  if (event_ == nullptr) {
    callback(nullptr);
    return;
  }
  auto pending = std::make_unique<Pending>(Pending{api_, std::move(callback)});
  Args<PJRT_Event_OnReady_Args> args;
  args.event = event_;
  args.callback = [](PJRT_Error* error, void* user_arg) { notify(error, user_arg); };
  args.user_arg = pending.get();
  check(api_, api_->PJRT_Event_OnReady(&args));
  pending.release();  // notify() owns it, and may already have run
}

}  // namespace torchtpu::pjrt
