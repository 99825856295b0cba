// The thread-local behind breadcrumb().
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/breadcrumb.h"

namespace kvasir {
namespace {

// Constant initialisation: no guard, so a signal handler may read it at any moment.
constinit thread_local Breadcrumb current;

}  // namespace

const Breadcrumb& breadcrumb() { return current; }

BreadcrumbScope::BreadcrumbScope(const Breadcrumb& crumb) : before_(current) { current = crumb; }

BreadcrumbScope::~BreadcrumbScope() { current = before_; }

}  // namespace kvasir
