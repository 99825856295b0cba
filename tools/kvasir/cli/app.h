// CLI11's command, for declarations: its headers cost each file that includes them seconds.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace CLI {
class App;
}
