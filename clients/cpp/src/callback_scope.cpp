#include "callback_scope.h"

namespace triptych::detail {
namespace {

thread_local int depth = 0;

}  // namespace

bool in_callback() noexcept { return depth > 0; }

CallbackScope::CallbackScope() noexcept { ++depth; }
CallbackScope::~CallbackScope() { --depth; }

}  // namespace triptych::detail
