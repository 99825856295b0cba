// See plots.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/plots.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "tools/kvasir/ab/html.h"
#include "tools/kvasir/ab/summary_words.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {
namespace {

double percent(double share) { return 100 * share; }

// The plot of bytes: pixels of its frame.
constexpr double kLeft = 40, kTop = 24, kWidth = 290, kHeight = 180;
double y_of(double share) { return kTop + kHeight * (1 - share); }

// 1, 2 or 5 times a power of ten, so that at most five ticks fit.
double tick_step(double most) {
  const double rough = most / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough) return factor * power;
  return 10 * power;
}

std::string frame(double most) {
  std::string out;
  for (const int share : {0, 25, 50, 75, 100}) {
    const double y = y_of(share / 100.0);
    out += format("<line class=\"grid\" x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\"/>", kLeft,
                  kLeft + kWidth, y, y) +
           format("<text class=\"tick\" x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%d</text>",
                  kLeft - 5, y + 3.5, share);
  }
  const double step = tick_step(most);
  for (double x = 0; x <= most * 1.0001; x += step)
    out += format("<text class=\"tick\" x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%g</text>",
                  kLeft + kWidth * x / most, kTop + kHeight + 15, x);
  return out +
         format(
             "<text class=\"tick\" x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">MB read for a "
             "token</text><text class=\"tick\" x=\"4\" y=\"10\">%% right</text>",
             kLeft + kWidth / 2, kTop + kHeight + 31);
}

struct Point {
  const AbCell* cell;
  double x, y;
};

// Points that cover each other have one label, which names the first three.
struct Label {
  double x, y;
  std::vector<std::string> names;
  std::string text() const {
    constexpr size_t kMost = 3;
    std::string out;
    for (size_t i = 0; i < std::min(names.size(), kMost); ++i) out += (i ? ", " : "") + names[i];
    return names.size() > kMost ? out + format(" + %zu", names.size() - kMost) : out;
  }
};

std::vector<Label> labels_of(const std::vector<Point>& points) {
  constexpr double kNear = 6;
  std::vector<Label> out;
  for (const Point& p : points) {
    const auto near = std::find_if(out.begin(), out.end(), [&](const Label& l) {
      return std::abs(l.x - p.x) < kNear && std::abs(l.y - p.y) < kNear;
    });
    if (near == out.end())
      out.push_back({p.x, p.y, {p.cell->label}});
    else
      near->names.push_back(p.cell->label);
  }
  return out;
}

// Beside their points, moved towards the middle where they would cover another.
std::string labels(const std::vector<Point>& points) {
  constexpr double kLine = 11, kMiddle = kTop + kHeight / 2;
  std::vector<Label> all = labels_of(points);
  std::sort(all.begin(), all.end(), [&](const Label& a, const Label& b) {
    return std::abs(a.y - kMiddle) > std::abs(b.y - kMiddle);
  });
  std::string out;
  std::vector<double> left, right;  // heights that are taken on each side
  for (const Label& label : all) {
    const bool to_left = label.x > kLeft + 0.6 * kWidth;
    std::vector<double>& taken = to_left ? left : right;
    const double away = label.y > kMiddle ? -kLine : kLine;
    double y = label.y + 3.5;
    while (std::any_of(taken.begin(), taken.end(),
                       [&](double other) { return std::abs(other - y) < kLine - 0.5; }))
      y += away;
    taken.push_back(y);
    out += format("<text class=\"label\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">",
                  to_left ? label.x - 7 : label.x + 7, y, to_left ? "end" : "start") +
           escaped(label.text()) + "</text>";
  }
  return out;
}

std::string sweep_lines(const std::vector<Point>& points) {
  std::map<std::string, std::vector<Point>> by_base;
  for (const Point& p : points)
    if (!p.cell->value.empty()) by_base[p.cell->base].push_back(p);
  std::string out;
  for (auto& [base, of] : by_base) {
    std::sort(of.begin(), of.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
    std::string way;
    for (const Point& p : of) way += format("%.1f,%.1f ", p.x, p.y);
    out += "<polyline class=\"sweep\" points=\"" + way + "\"/>";
  }
  return out;
}

}  // namespace

std::string look_of(const AbCell& cell) {
  if (!cell.failed.empty()) return "failed";
  if (cell.is_dense) return "dense";
  if (cell.is_rung) return "rung";
  switch (cell.judgement.verdict) {
    case Verdict::kWorse:
      return "worse";
    case Verdict::kBetter:
      return "odd";
    case Verdict::kSame:
    case Verdict::kEquivalent:
      return cell.not_engaged.empty() ? "fine" : "open";
    default:
      return "open";
  }
}

std::string accuracy_plot(const AbSummary& s, std::span<const AbCell> cells) {
  std::string out =
      "<div class=\"dots\" role=\"table\" aria-label=\"Accuracy with 95 % intervals\">";
  for (const AbCell& cell : cells) {
    if (cell.is_rung) continue;
    const Interval interval = s.accuracy(cell);
    const double at = percent(cell.answers.value());
    const double low = percent(interval.low), high = percent(interval.high);
    const std::string words = cell.is_dense ? "control" : verdict_words(s, cell);
    out += "<div class=\"line " + look_of(cell) + "\" role=\"row\"><span class=\"name\" " +
           "role=\"rowheader\">" + escaped(cell.label) + "</span><span class=\"track\" " +
           "aria-hidden=\"true\">";
    if (cell.answers.n > 0)
      out += format(
          "<i class=\"bar\" style=\"left:%.1f%%;width:%.1f%%\"></i><i class=\"dot\" "
          "style=\"left:%.1f%%\"></i>",
          low, high - low, at);
    for (const auto& [rung, share] : {std::pair("oracle", cell.oracle), {"random", cell.random}})
      if (share) out += format("<i class=\"%s\" style=\"left:%.1f%%\"></i>", rung, percent(*share));
    out += "</span><span class=\"value\" role=\"cell\">" +
           (cell.answers.n > 0 ? format("%.1f %% ", at) : std::string()) +
           (cell.answers.n > 0 ? format("<small>%.0f to %.0f</small>", low, high) : std::string()) +
           "</span><span class=\"words\" role=\"cell\">" + escaped(words) + "</span></div>";
  }
  return out + "</div>";
}

// From 0 to the largest ratio.
std::string speed_plot(std::span<const AbCell> cells) {
  double most = 1;
  for (const AbCell& cell : cells)
    if (cell.is_arm() && cell.decode_ratio)
      most = std::max(most, 1.05 * cell.decode_ratio->third_quartile);
  std::string out = "<div class=\"dots\" role=\"table\" aria-label=\"Speed against dense\">";
  for (const AbCell& cell : cells) {
    if (!cell.is_arm() || !cell.decode_ratio) continue;
    const Spread& ratio = *cell.decode_ratio;
    const auto at = [&](double value) { return percent(std::min(value / most, 1.0)); };
    out += "<div class=\"line dense\" role=\"row\"><span class=\"name\" role=\"rowheader\">" +
           escaped(cell.label) + "</span><span class=\"track speed\" aria-hidden=\"true\">" +
           format(
               "<i class=\"oracle\" style=\"left:%.1f%%\"></i><i class=\"bar\" "
               "style=\"left:%.1f%%;width:%.1f%%\"></i><i class=\"dot\" style=\"left:%.1f%%\"></i>",
               at(1), at(ratio.first_quartile), at(ratio.third_quartile) - at(ratio.first_quartile),
               at(ratio.median)) +
           format("</span><span class=\"value\" role=\"cell\">%.2f x ", ratio.median) +
           (ratio.median_95
                ? format("<small>%.2f to %.2f</small>", ratio.median_95->low, ratio.median_95->high)
                : std::string()) +
           "</span></div>";
  }
  return out + "</div>";
}

std::string bytes_plot(std::span<const AbCell> cells) {
  double most = 0;
  for (const AbCell& cell : cells)
    if (!cell.is_rung) most = std::max(most, cell.bytes_per_step / 1e6);
  if (most <= 0) return "";
  most *= 1.05;
  std::vector<Point> points;
  for (const AbCell& cell : cells)
    if (cell.answers.n > 0 && !cell.is_rung)
      points.push_back(
          {&cell, kLeft + kWidth * cell.bytes_per_step / 1e6 / most, y_of(cell.answers.value())});
  std::string out =
      format("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"Accuracy over bytes read\">",
             kLeft + kWidth + 14, kTop + kHeight + 36);
  out += frame(most) + sweep_lines(points);
  for (const Point& p : points)
    out += format("<circle class=\"%s%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\"><title>",
                  look_of(*p.cell).c_str(), p.cell->is_dense || p.cell->is_pareto ? " best" : "",
                  p.x, p.y) +
           escaped(p.cell->label) +
           format(": %.1f %%, %.3f MB", percent(p.cell->answers.value()),
                  p.cell->bytes_per_step / 1e6) +
           "</title></circle>";
  return out + labels(points) + "</svg>";
}

std::string depth_map(const AbSummary& s, const std::string& task, const std::string& label) {
  std::string rows;
  for (const AbCell& cell : s.cells) {
    if (cell.task != task || cell.label != label || cell.answers.n == 0) continue;
    rows += format("<tr><th scope=\"row\">%u</th>", cell.length);
    for (const Share& bin : cell.by_depth) {
      const double share = percent(bin.value());
      rows += bin.n == 0 ? "<td class=\"none\">-</td>"
                         : format(
                               "<td class=\"%s\" style=\"--v:%.0f%%\" title=\"%llu of %llu\">"
                               "%.0f</td>",
                               share >= 70 ? "high" : "low", share,
                               static_cast<unsigned long long>(bin.right),
                               static_cast<unsigned long long>(bin.n), share);
    }
    rows += "</tr>";
  }
  if (rows.empty()) return "";
  std::string head;
  const size_t n_bins = s.depths.empty() ? kDepthBins : s.depths.size();
  for (size_t i = 0; i < n_bins; ++i)
    head += format(
        "<th scope=\"col\">%.0f</th>",
        percent(s.depths.empty() ? (static_cast<double>(i) + 0.5) / static_cast<double>(n_bins)
                                 : s.depths[i]));
  return "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"" + escaped(label) +
         " by length and depth\"><table class=\"map\"><caption>" + escaped(label) +
         "</caption><tr><th scope=\"col\">tokens</th>" + head + "</tr>" + rows + "</table></div>";
}

std::string speed_map(const AbSummary& s, const std::string& task) {
  double most = 1;
  std::map<std::string, std::map<uint32_t, double>> by_arm;  // by length
  for (const AbCell& cell : s.cells) {
    if (cell.task != task || !cell.decode_ratio) continue;
    by_arm[cell.label][cell.length] = cell.decode_ratio->median;
    most = std::max(most, cell.decode_ratio->median);
  }
  std::string head, rows;
  for (const Json& length : s.declared.at("lengths"))
    head += format("<th scope=\"col\">%u</th>", length.get<uint32_t>());
  for (const auto& [label, by_length] : by_arm) {
    rows += "<tr><th scope=\"row\">" + escaped(label) + "</th>";
    for (const Json& length : s.declared.at("lengths")) {
      const auto ratio = by_length.find(length.get<uint32_t>());
      rows += ratio == by_length.end() ? "<td class=\"none\">-</td>"
                                       : format("<td class=\"%s\" style=\"--v:%.0f%%\">%.2f</td>",
                                                ratio->second >= 0.7 * most ? "high" : "low",
                                                percent(ratio->second / most), ratio->second);
    }
    rows += "</tr>";
  }
  if (rows.empty()) return "";
  return "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Speed of " +
         escaped(task) + " by length\"><table class=\"map\"><caption>" + escaped(task) +
         ", by length</caption><tr><th scope=\"col\">tokens</th>" + head + "</tr>" + rows +
         "</table></div>";
}

std::string layer_map(std::span<const AbCell> cells) {
  std::string rows;
  size_t n_layers = 0;
  for (const AbCell& cell : cells) {
    if (cell.layers.empty()) continue;
    n_layers = cell.layers.size();
    rows += "<tr><th scope=\"row\">" + escaped(cell.label) + "</th>";
    for (const LayerFigures& f : cell.layers)
      rows += format(
          "<td class=\"%s\" style=\"--v:%.0f%%\" title=\"%.1f %% captured, exact choice %.1f %%, "
          "top-64 recall %.1f %%, output error %.4f\">%.0f</td>",
          f.captured >= 0.7 ? "high" : "low", percent(f.captured), percent(f.captured),
          percent(f.exact), percent(f.recall), f.error, percent(f.captured));
    rows += "</tr>";
  }
  if (rows.empty()) return "";
  std::string head;
  for (size_t i = 1; i <= n_layers; ++i) head += format("<th scope=\"col\">%zu</th>", i);
  return "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Captured mass by "
         "layer\"><table class=\"map\"><tr><th scope=\"col\">layer</th>" +
         head + "</tr>" + rows + "</table></div>";
}

}  // namespace kvasir::tool
