// A whole model on a device, called as the core calls it, against the transformer in double. Needs
// nothing of the product but the library: it is also run on machines that have little else.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/device_layers.h"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <random>
#include <span>

#include "tests/kernels/cuda/weight_case.h"
#include "tests/support/larger_or_nan.h"

namespace {
using namespace kvasir;
using test::WeightCase;

using Row = std::vector<double>;

const DeviceLibraryTable& library() {
  static const DeviceLibraryTable* table = [] {
    void* file = dlopen(KVASIR_TEST_DEVICE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(file, dlerror());
    return static_cast<const DeviceLibraryTable*>(dlsym(file, "kvasir_device_layers"));
  }();
  return *table;
}

// Weights that keep the size of what they multiply.
void fill(WeightCase& w, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(w.n_in)));
  for (float& x : w.values) x = normal(random);
  quantize(w.type, w.values.data(), w.bytes.data(), w.values.size());
  dequantize(w.type, w.bytes.data(), w.values.data(), w.values.size());
}

// A model of random weights. Every second layer turns by other angles, as layers that slide do.
struct Model {
  DeviceShape shape;
  GgmlType type;
  bool has_all;  // biases, and norms of heads and behind attention and feed-forward
  RopePairing pairing;
  uint32_t n_layers = 2;
  double base[2] = {10000.0, 100.0}, magnitude = 1.1;

  struct Layer {
    std::vector<float> vectors[9];
    std::deque<WeightCase> matrices;  // q, k, v, o, gate, up, down
  };
  std::vector<Layer> layers;
  std::vector<float> head_norm;
  std::deque<WeightCase> head;

  Model(const DeviceShape& of, GgmlType weights, bool all, RopePairing pairs)
      : shape(of), type(weights), has_all(all), pairing(pairs) {
    uint32_t seed = 1;
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0.0f, 0.3f);
    const auto vector = [&](uint32_t n, float around) {
      std::vector<float> values(n);
      for (float& x : values) x = around + normal(random);
      return values;
    };
    const DeviceShape& s = shape;
    for (uint32_t l = 0; l < n_layers; ++l) {
      Layer& layer = layers.emplace_back();
      layer.vectors[0] = vector(s.d_model, 1.0f);
      layer.vectors[7] = vector(s.d_model, 1.0f);
      if (has_all) {
        layer.vectors[1] = vector(s.q_width(), 0.0f);
        layer.vectors[2] = vector(s.k_width(), 0.0f);
        layer.vectors[3] = vector(s.v_width(), 0.0f);
        layer.vectors[4] = layer.vectors[5] = vector(s.head_dim, 1.0f);
        layer.vectors[6] = vector(s.d_model, 0.5f);
        layer.vectors[8] = vector(s.d_model, 0.5f);
      }
      for (const auto& [in, out] : {std::pair{s.d_model, s.q_width()},
                                    {s.d_model, s.k_width()},
                                    {s.d_model, s.v_width()},
                                    {s.o_width(), s.d_model},
                                    {s.d_model, s.d_ff},
                                    {s.d_model, s.d_ff},
                                    {s.d_ff, s.d_model}})
        layer.matrices.emplace_back(type, in, out, ++seed);
    }
    head_norm = vector(s.d_model, 1.0f);
    head.emplace_back(type, s.d_model, s.vocab_size, ++seed);
    for (Layer& layer : layers)
      for (WeightCase& w : layer.matrices) fill(w, random);
    fill(head[0], random);
  }

  static DeviceMatrix matrix(const WeightCase& w) {
    return {w.type, w.n_in, w.n_out, std::as_bytes(std::span(w.bytes))};
  }
  std::unique_ptr<DeviceLayers> on_device() const {
    std::unique_ptr<DeviceLayers> made = library().make(shape);
    for (const Layer& l : layers) {
      const auto& v = l.vectors;
      const auto m = [&](size_t i) { return matrix(l.matrices[i]); };
      made->add_layer({v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], m(0), m(1), m(2), m(3),
                       m(4), m(5), m(6)});
    }
    made->set_head({head_norm, matrix(head[0])});
    return made;
  }
  // Radians of a pair at a position.
  double angle(uint32_t layer, uint32_t pos, uint32_t pair) const {
    return pos * std::pow(base[layer % 2], -1.0 * pair / shape.rope_pairs);
  }
};

std::vector<float> random_rows(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

// ---- in double ----

Row times(const Row& x, const WeightCase& w) {
  Row y(w.n_out);
  for (uint32_t o = 0; o < w.n_out; ++o)
    for (uint32_t i = 0; i < w.n_in; ++i) y[o] += x[i] * double{w.values[size_t{o} * w.n_in + i]};
  return y;
}
void add(Row& y, const std::vector<float>& bias) {
  for (size_t i = 0; i < bias.size(); ++i) y[i] += double{bias[i]};
}
// Parts of `width` elements, each by itself; no weight: as it is.
Row normed(Row x, const std::vector<float>& weight, double eps) {
  for (size_t at = 0; !weight.empty() && at < x.size(); at += weight.size()) {
    double squares = 0.0;
    for (size_t i = 0; i < weight.size(); ++i) squares += x[at + i] * x[at + i];
    const double size = std::sqrt(squares / static_cast<double>(weight.size()) + eps);
    for (size_t i = 0; i < weight.size(); ++i) x[at + i] *= double{weight[i]} / size;
  }
  return x;
}

void turn(const Model& m, uint32_t layer, uint32_t pos, Row& heads) {
  const uint32_t pairs = m.shape.rope_pairs;
  for (size_t head = 0; head < heads.size(); head += m.shape.head_dim)
    for (uint32_t i = 0; i < pairs; ++i) {
      const bool interleaved = m.pairing == RopePairing::kInterleaved;
      double& a = heads[head + (interleaved ? 2 * i : i)];
      double& b = heads[head + (interleaved ? 2 * i + 1 : i + pairs)];
      const double c = m.magnitude * std::cos(m.angle(layer, pos, i));
      const double s = m.magnitude * std::sin(m.angle(layer, pos, i));
      const double turned = a * c - b * s;
      b = a * s + b * c;
      a = turned;
    }
}

// o of one query over the keys before and at it; k and v of all tokens.
Row attention(const DeviceShape& s, const Row& q, const std::vector<Row>& k,
              const std::vector<Row>& v) {
  Row o(s.o_width());
  for (uint32_t head = 0; head < s.n_q_heads; ++head) {
    const uint32_t kv_head = head / (s.n_q_heads / s.n_kv_heads);
    double total = 0.0;
    for (size_t t = 0; t < k.size(); ++t) {  // logits are small
      double dot = 0.0;
      for (uint32_t d = 0; d < s.head_dim; ++d)
        dot += q[head * s.head_dim + d] * k[t][kv_head * s.head_dim + d];
      const double weight = std::exp(dot / std::sqrt(double{1.0} * s.head_dim));
      total += weight;
      for (uint32_t d = 0; d < s.v_head_dim; ++d)
        o[head * s.v_head_dim + d] += weight * v[t][kv_head * s.v_head_dim + d];
    }
    for (uint32_t d = 0; d < s.v_head_dim; ++d) o[head * s.v_head_dim + d] /= total;
  }
  return o;
}

double activated(Activation kind, double x) {
  if (kind == Activation::kSilu) return x / (1.0 + std::exp(-x));
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

struct Expected {
  std::vector<Row> hidden, logits;  // of each token
};
Expected oracle(const Model& m, const std::vector<float>& embedded) {
  const DeviceShape& s = m.shape;
  Expected out;
  for (size_t at = 0; at < embedded.size(); at += s.d_model)
    out.hidden.emplace_back(embedded.begin() + static_cast<std::ptrdiff_t>(at),
                            embedded.begin() + static_cast<std::ptrdiff_t>(at + s.d_model));
  for (uint32_t l = 0; l < m.n_layers; ++l) {
    const auto& [vectors, matrices] = m.layers[l];
    std::vector<Row> k, v;
    for (uint32_t t = 0; t < out.hidden.size(); ++t) {
      Row& h = out.hidden[t];
      const Row x = normed(h, vectors[0], double{s.norm_eps});
      Row qkv[3];
      for (size_t i = 0; i < 3; ++i) {
        qkv[i] = times(x, matrices[i]);
        add(qkv[i], vectors[1 + i]);
        if (i == 2) continue;
        qkv[i] = normed(qkv[i], vectors[4 + i], double{s.norm_eps});
        turn(m, l, t, qkv[i]);
      }
      k.push_back(qkv[1]);
      v.push_back(qkv[2]);
      const Row o = attention(s, qkv[0], k, v);
      const Row attended = normed(times(o, matrices[3]), vectors[6], double{s.norm_eps});
      for (uint32_t d = 0; d < s.d_model; ++d) h[d] += attended[d];
      const Row z = normed(h, vectors[7], double{s.norm_eps});
      Row gate = times(z, matrices[4]);
      const Row up = times(z, matrices[5]);
      for (uint32_t d = 0; d < s.d_ff; ++d) gate[d] = activated(s.activation, gate[d]) * up[d];
      const Row down = normed(times(gate, matrices[6]), vectors[8], double{s.norm_eps});
      for (uint32_t d = 0; d < s.d_model; ++d) h[d] += down[d];
    }
  }
  const double cap = double{s.logits_softcap};
  for (const Row& h : out.hidden) {
    Row logits = times(normed(h, m.head_norm, double{s.norm_eps}), m.head[0]);
    for (double& x : logits) x = cap == 0.0 ? x : cap * std::tanh(x / cap);
    out.logits.push_back(std::move(logits));
  }
  return out;
}

// ---- on the device ----

// The host's side of a sequence: its arrays, and K and V of what it has read.
struct Sequence {
  const Model& m;
  DeviceLayers& device;
  std::vector<float> h, x, q, k, v, o, cos, sin;
  std::vector<std::vector<Row>> keys, values;
  uint32_t n_read = 0;
  bool is_pinned = false;

  Sequence(const Model& of, DeviceLayers& on) : m(of), device(on) {
    const DeviceShape& s = m.shape;
    const auto rows = [&](uint32_t width) { return std::vector<float>(s.max_tokens * width); };
    h = x = rows(s.d_model);
    q = rows(s.q_width());
    k = rows(s.k_width());
    v = rows(s.v_width());
    o = rows(s.o_width());
    cos = sin = rows(s.rope_pairs);
    keys.resize(m.n_layers);
    values.resize(m.n_layers);
  }
  ~Sequence() {
    if (is_pinned)
      for (std::vector<float>* rows : {&h, &x, &q, &k, &v, &o}) device.unpin(*rows);
  }
  Sequence(const Sequence&) = delete;
  void pin() {
    is_pinned = true;
    for (std::vector<float>* rows : {&h, &x, &q, &k, &v, &o}) device.pin(*rows);
  }

  static Row row(const std::vector<float>& from, uint32_t i, uint32_t width) {
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(i) * width;
    return {begin, begin + width};
  }
  // The angles of a layer for rows at these positions, as table `table`.
  void put_angles(uint32_t table, uint32_t layer, std::span<const uint32_t> pos) {
    const DeviceShape& s = m.shape;
    for (uint32_t i = 0; i < pos.size() * s.rope_pairs; ++i) {
      const double angle = m.angle(layer, pos[i / s.rope_pairs], i % s.rope_pairs);
      cos[i] = static_cast<float>(m.magnitude * std::cos(angle));
      sin[i] = static_cast<float>(m.magnitude * std::sin(angle));
    }
    device.put_angles(table, cos.data(), sin.data(), static_cast<uint32_t>(pos.size()),
                      s.rope_pairs);
  }
  // The next n tokens, leaving h on the device.
  void run(const std::vector<float>& embedded, uint32_t n) {
    const DeviceShape& s = m.shape;
    std::copy_n(embedded.begin() + static_cast<std::ptrdiff_t>(n_read) * s.d_model,
                uint64_t{n} * s.d_model, h.begin());
    device.put_hidden(h.data(), n);
    std::vector<uint32_t> pos(n);
    std::iota(pos.begin(), pos.end(), n_read);
    for (uint32_t layer = 0; layer < m.n_layers; ++layer) {
      if (layer < 2) put_angles(layer, layer, pos);
      device.attn_norm(layer, n);
      const DeviceLayers::Rows all[] = {{0, n}};
      device.project_qkv(layer, n, {layer % 2, m.pairing, all, all});
      device.get_projected(q.data(), k.data(), v.data(), n);
      for (uint32_t i = 0; i < n; ++i) {
        keys[layer].push_back(row(k, i, s.k_width()));
        values[layer].push_back(row(v, i, s.v_width()));
        const Row of = attention(s, row(q, i, s.q_width()), keys[layer], values[layer]);
        for (uint32_t d = 0; d < s.o_width(); ++d)
          o[i * s.o_width() + d] = static_cast<float>(of[d]);
      }
      device.attn_output(layer, o.data(), n);
      device.ffn(layer, n);
    }
    n_read += n;
  }
};

double difference(const std::vector<float>& got, uint32_t n, const std::vector<Row>& want,
                  uint32_t first) {
  double worst = 0.0;
  const size_t width = want[0].size();
  for (uint32_t i = 0; i < n; ++i)
    for (size_t d = 0; d < width; ++d) {
      const double w = want[first + i][d];
      worst = test::larger_or_nan(worst,
                                  std::abs(double{got[i * width + d]} - w) / (1.0 + std::abs(w)));
    }
  return worst;
}

// Odd widths, K and V of unlike widths, heads that turn in part, and all that some models lack.
DeviceShape odd_shape(uint32_t max_tokens) {
  DeviceShape s;
  s.d_model = 37;
  s.d_ff = 53;
  s.vocab_size = 41;
  s.n_q_heads = 6;
  s.n_kv_heads = 2;
  s.head_dim = 10;
  s.v_head_dim = 7;
  s.rope_pairs = 3;
  s.norm_eps = 1e-5f;
  s.logits_softcap = 5.0f;
  s.activation = Activation::kGelu;
  s.max_tokens = max_tokens;
  s.has_head = s.exact = true;
  return s;
}
// Rows of whole blocks of quantised types.
DeviceShape even_shape(uint32_t max_tokens, bool exact) {
  DeviceShape s;
  s.d_model = s.d_ff = 256;
  s.vocab_size = 80;
  s.n_q_heads = 8;
  s.n_kv_heads = 4;
  s.head_dim = s.v_head_dim = 32;
  s.rope_pairs = 16;
  s.norm_eps = 1e-5f;
  s.max_tokens = max_tokens;
  s.has_head = true;
  s.exact = exact;
  return s;
}

// Worst of the last hidden state and of the logits, over steps of these sizes.
double worst_of(const Model& m, std::initializer_list<uint32_t> steps, bool pins) {
  uint32_t n_tokens = 0;
  for (const uint32_t n : steps) n_tokens += n;
  const std::vector<float> embedded = random_rows(uint64_t{n_tokens} * m.shape.d_model, 3);
  const Expected want = oracle(m, embedded);
  const auto device = m.on_device();
  Sequence seq(m, *device);
  if (pins) seq.pin();
  double worst = 0.0;
  for (const uint32_t n : steps) {
    const uint32_t first = seq.n_read;
    seq.run(embedded, n);
    CHECK(device->hidden_is_finite(n));
    device->get_hidden(seq.h.data(), 0, n);
    worst = test::larger_or_nan(worst, difference(seq.h, n, want.hidden, first));
    std::vector<float> logits(uint64_t{n} * m.shape.vocab_size);
    device->logits(seq.h.data(), n, logits.data());
    worst = test::larger_or_nan(worst, difference(logits, n, want.logits, first));
  }
  return worst;
}

}  // namespace

TEST_SUITE_BEGIN("core/model/device_layers");

TEST_CASE("there is a device, and its memory") {
  CHECK(library().problem() == "");
  CHECK(library().memory().free_bytes > 0);
  CHECK(library().memory().free_bytes <= library().memory().total_bytes);
}

// Sums of some dozen products in f32, through two layers.
TEST_CASE("a model on the device, in f32: a prompt in pieces, then token by token") {
  for (const GgmlType type : {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16})
    for (const RopePairing pairing : {RopePairing::kInterleaved, RopePairing::kHalfSplit})
      for (const bool pins : {false, true}) {
        const Model m(odd_shape(11), type, true, pairing);
        CAPTURE(std::string(name(type)));
        CHECK(worst_of(m, {11, 3, 1, 1}, pins) < 2e-5);
      }
  for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_K}) {
    CAPTURE(std::string(name(type)));
    const Model m(even_shape(9, true), type, false, RopePairing::kHalfSplit);
    CHECK(worst_of(m, {9, 1}, true) < 2e-5);
  }
}

TEST_CASE("else few rows are multiplied in f32, and many in bf16") {
  for (const GgmlType type : {GgmlType::kBF16, GgmlType::kQ8_0, GgmlType::kQ4_K}) {
    CAPTURE(std::string(name(type)));
    const Model m(even_shape(13, false), type, false, RopePairing::kInterleaved);
    CHECK(worst_of(m, {8, 1}, true) < 2e-5);
    const double many = worst_of(m, {13}, true);
    CHECK(many < 0.1);  // factors of 8 bits
    CHECK(many > 1e-4);
  }
}

TEST_CASE("only the rows that are named turn, each by its own angles") {
  const Model m(odd_shape(5), GgmlType::kF32, false, RopePairing::kHalfSplit);
  const DeviceShape& s = m.shape;
  const auto device = m.on_device();
  Sequence seq(m, *device);
  const std::vector<float> x = random_rows(uint64_t{5} * s.d_model, 9);
  const uint32_t pos[] = {7, 100000, 3, 3, 2};
  device->put_input(x.data(), 5);
  seq.put_angles(1, 0, pos);
  const DeviceLayers::Rows of_q[] = {{0, 2}, {3, 2}}, of_k[] = {{1, 1}};
  device->project_qkv(0, 5, {1, m.pairing, of_q, of_k});
  device->get_projected(seq.q.data(), seq.k.data(), nullptr, 5);
  std::vector<Row> want_q, want_k;
  for (uint32_t i = 0; i < 5; ++i) {
    const Row row = Sequence::row(x, i, s.d_model);
    want_q.push_back(times(row, m.layers[0].matrices[0]));
    want_k.push_back(times(row, m.layers[0].matrices[1]));
    if (i != 2) turn(m, 0, pos[i], want_q.back());
    if (i == 1) turn(m, 0, pos[i], want_k.back());
  }
  CHECK(difference(seq.q, 5, want_q, 0) < 1e-5);
  CHECK(difference(seq.k, 5, want_k, 0) < 1e-5);
}

TEST_CASE("what the host asks on the way changes nothing, and reads what is there") {
  const Model m(odd_shape(4), GgmlType::kF32, true, RopePairing::kInterleaved);
  const DeviceShape& s = m.shape;
  const auto device = m.on_device();
  const std::vector<float> h = random_rows(uint64_t{4} * s.d_model, 4),
                           other = random_rows(uint64_t{2} * s.d_model, 5);
  std::vector<float> q(uint64_t{4} * s.q_width()), again = q, ahead(uint64_t{2} * s.q_width()),
                                                   x(other.size()),
                                                   logits(uint64_t{2} * s.vocab_size);
  device->put_hidden(h.data(), 4);
  device->attn_norm(0, 4);
  device->project_qkv(0, 4, {});
  device->get_projected(q.data(), nullptr, nullptr, 4);
  device->query_of(1, other.data(), 2, x.data(), ahead.data());
  device->logits(other.data(), 2, logits.data());
  device->get_projected(again.data(), nullptr, nullptr, 4);
  CHECK(again == q);
  std::vector<float> rows(h.size(), -1.0f);
  device->get_hidden(rows.data(), 1, 2);
  for (uint32_t i = 0; i < rows.size(); ++i)
    CHECK(rows[i] == (i / s.d_model == 1 || i / s.d_model == 2 ? h[i] : -1.0f));

  std::vector<Row> want_x, want_q;
  for (uint32_t i = 0; i < 2; ++i) {
    const auto& [vectors, matrices] = m.layers[1];
    want_x.push_back(normed(Sequence::row(other, i, s.d_model), vectors[0], double{s.norm_eps}));
    want_q.push_back(times(want_x.back(), matrices[0]));
    add(want_q.back(), vectors[1]);
    want_q.back() = normed(want_q.back(), vectors[4], double{s.norm_eps});
  }
  CHECK(difference(x, 2, want_x, 0) < 1e-5);
  CHECK(difference(ahead, 2, want_q, 0) < 1e-5);
  device->query_of(1, x.data(), 2, nullptr, again.data());  // of what is normalised already
  CHECK(std::vector<float>(again.begin(),
                           again.begin() + static_cast<std::ptrdiff_t>(ahead.size())) == ahead);
}

TEST_CASE("a later layer's query is made of the state that is there, and stays there") {
  const Model m(odd_shape(5), GgmlType::kF32, true, RopePairing::kHalfSplit);
  const DeviceShape& s = m.shape;
  const auto device = m.on_device();
  Sequence seq(m, *device);
  const std::vector<float> h = random_rows(uint64_t{5} * s.d_model, 9);
  const uint32_t pos[] = {7, 100000, 3, 3, 2};
  device->put_hidden(h.data(), 5);
  seq.put_angles(1, 1, pos);
  const DeviceLayers::Rows of_q[] = {{0, 3}, {4, 1}};
  const uint64_t before = device->copied().to_host;
  for (int again = 0; again < 3; ++again) {  // as a graph, too
    const float* const there = device->query_ahead(1, 5, {1, m.pairing, of_q, {}});
    CHECK(device->is_device_memory(there));
  }
  CHECK(device->copied().to_host == before);
  device->get_ahead(seq.q.data(), 5);
  std::vector<Row> want;
  for (uint32_t i = 0; i < 5; ++i) {
    const auto& [vectors, matrices] = m.layers[1];
    want.push_back(
        times(normed(Sequence::row(h, i, s.d_model), vectors[0], double{s.norm_eps}), matrices[0]));
    add(want.back(), vectors[1]);
    want.back() = normed(want.back(), vectors[4], double{s.norm_eps});
    if (i != 3) turn(m, 1, pos[i], want.back());
  }
  CHECK(difference(seq.q, 5, want, 0) < 1e-5);
  std::vector<float> rows(h.size());
  device->get_hidden(rows.data(), 0, 5);
  CHECK(rows == h);
}

TEST_CASE("rows that are not finite are found, in the rows of the call alone") {
  const Model m(odd_shape(4), GgmlType::kF32, false, RopePairing::kInterleaved);
  const auto device = m.on_device();
  std::vector<float> h = random_rows(uint64_t{4} * m.shape.d_model, 4);
  device->put_hidden(h.data(), 4);
  CHECK(device->hidden_is_finite(4));
  h[3 * m.shape.d_model] = -INFINITY;
  device->put_hidden(h.data(), 4);
  CHECK_FALSE(device->hidden_is_finite(4));
  CHECK(device->hidden_is_finite(3));
}

TEST_CASE("what is projected is handed over on the device, checked, with NaN for what is to come") {
  const Model m(odd_shape(4), GgmlType::kF32, false, RopePairing::kInterleaved);
  const DeviceShape& s = m.shape;
  const auto device = m.on_device();
  std::vector<float> x = random_rows(uint64_t{4} * s.d_model, 4);
  device->put_hidden(x.data(), 4);
  device->put_input(x.data(), 4);
  device->project_qkv(0, 4, {});
  DeviceLayers::Projected there = device->projected(4);
  CHECK(there.is_finite);
  for (const float* rows : {there.q, there.k, there.v, const_cast<const float*>(there.o)})
    CHECK(device->is_device_memory(rows));
  CHECK_FALSE(device->is_device_memory(x.data()));
  CHECK(there.lse == there.o + 4 * s.o_width());
  const uint64_t before = device->copied().to_device;
  device->attn_output(0, there.o, 4);
  CHECK(device->copied().to_device == before);
  CHECK_FALSE(device->hidden_is_finite(1));
  x[3 * s.d_model] = NAN;
  device->put_input(x.data(), 4);
  device->project_qkv(0, 4, {});
  CHECK_FALSE(device->projected(4).is_finite);
  device->project_qkv(0, 3, {});
  CHECK(device->projected(3).is_finite);
}
