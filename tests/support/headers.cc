// The program whose headers all tests share; see kvasir_add_test_headers.
// SPDX-License-Identifier: Apache-2.0
