// See html.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/html.h"

#include <algorithm>
#include <span>
#include <vector>

#include "tools/kvasir/ab/plots.h"
#include "tools/kvasir/ab/summary_words.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {
namespace {

constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--page:#fbfbf9;--ink:#1c1c1a;--soft:#63635d;--grid:#dededa;--raised:#f1f1ed;
--blue:#22559f;--red:#ab2e22;--green:#216e43;--amber:#8a5300}
@media (prefers-color-scheme:dark){:root{--page:#16181a;--ink:#e7e7e2;--soft:#a6a69f;--grid:#3a3d42;
--raised:#212427;--blue:#86b1f5;--red:#f28f83;--green:#83cfa2;--amber:#e6b566}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1rem;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.35rem;line-height:1.25;margin:.4rem 0;overflow-wrap:anywhere}
h2{font-size:1.05rem;margin:1.8rem 0 .5rem}
h3{font-size:.95rem;margin:1rem 0 .3rem}
p,li{max-width:48rem;overflow-wrap:anywhere}
small,.tick,.soft{color:var(--soft)}
.dots .line{display:grid;grid-template-columns:minmax(7rem,12rem) minmax(6rem,1fr) 9rem minmax(8rem,17rem);
gap:.2rem .8rem;align-items:center;padding:.12rem 0}
.name{overflow-wrap:anywhere}
.track{position:relative;height:1.1rem;border-left:1px solid var(--grid);border-right:1px solid var(--grid);
background:linear-gradient(var(--grid),var(--grid)) 50% 50%/1px 100% no-repeat}
.bar,.dot{position:absolute;display:block;background:currentColor;color:var(--look)}
.bar{top:.45rem;height:.2rem;border-radius:.1rem}
.dot{top:.2rem;width:.7rem;height:.7rem;margin-left:-.35rem;border-radius:50%}
.oracle,.random{position:absolute;display:block;top:.1rem;height:.9rem;width:2px;margin-left:-1px;background:var(--ink)}
.random{width:0;border-left:2px dotted var(--ink);background:none}
.words{color:var(--look)}
.value{font-variant-numeric:tabular-nums}
.dense{--look:var(--ink)}.worse,.failed{--look:var(--red)}.fine{--look:var(--green)}
.odd{--look:var(--amber)}.open{--look:var(--blue)}
@media (max-width:46rem){.dots .line{grid-template-columns:1fr auto;padding:.35rem 0}
.track{grid-column:1/-1;grid-row:2}.words{grid-column:1/-1}}
.plots{display:flex;flex-wrap:wrap;gap:1rem}
figure{margin:0;flex:1 1 20rem;max-width:26rem;min-width:0}
figcaption{font-weight:600;font-size:.9rem}
svg{width:100%;height:auto;display:block}
svg .grid{stroke:var(--grid)}svg text{font:10px system-ui,sans-serif;fill:var(--soft)}
svg .label{fill:var(--ink)}svg circle{fill:var(--page);stroke:var(--look);stroke-width:2}
svg circle.best{fill:var(--look)}svg .sweep{fill:none;stroke:var(--soft);stroke-width:1}
.wide{overflow-x:auto;min-width:0;max-width:100%}
.wide:focus-visible,summary:focus-visible{outline:2px solid var(--blue);outline-offset:2px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.verdicts th,.verdicts td{padding:.25rem .6rem;border-bottom:1px solid var(--grid);text-align:left;
white-space:nowrap}
.verdicts .number{text-align:right}.verdicts .verdict{color:var(--look)}
.map{margin:.3rem 0}.map caption{text-align:left;font-weight:600;font-size:.9rem}
.map th{font-weight:400;color:var(--soft);padding:.1rem .4rem;text-align:right}
.map td{width:2.6rem;height:1.7rem;text-align:center;border:2px solid var(--page);
background:color-mix(in srgb,var(--blue) var(--v),var(--raised))}
.map .high{color:var(--page)}.map .none{color:var(--soft);background:none}
pre{background:var(--raised);padding:.7rem;overflow-x:auto;font-size:.8rem}
)";

// Cells of one task and length, dense attention's first.
std::span<const AbCell> group(const AbSummary& s, size_t begin) {
  return std::span(s.cells).subspan(begin, s.n_strategies);
}

std::string group_name(const AbCell& cell) {
  return escaped(cell.task) + format(" at %u tokens, %llu answers", cell.length,
                                     static_cast<unsigned long long>(cell.answers.n));
}

std::string speeds(const AbSummary& s) {
  if (!s.has_times()) return "";
  std::string out = "<h2>Speed of decoding</h2>";
  for (size_t i = 0; i < s.cells.size(); i += s.n_strategies)
    out += "<h3>" + group_name(s.cells[i]) + "</h3>" + speed_plot(group(s, i));
  if (s.declared.at("lengths").size() > 1)
    for (const Json& task : s.declared.at("tasks")) out += speed_map(s, task);
  return out +
         "<p class=\"soft\">Dense attention's time over the arm's, sample by sample: a dot is the "
         "median of the ratios, the line half of them (quartiles), the figures the median's 95 % "
         "interval. Upright: as fast as dense attention.</p>";
}

std::string pictures(const AbSummary& s) {
  std::string out = "<h2>Right answers</h2>";
  for (size_t i = 0; i < s.cells.size(); i += s.n_strategies)
    out += "<h3>" + group_name(s.cells[i]) + "</h3>" + accuracy_plot(s, group(s, i));
  out += std::string(
             "<p class=\"soft\">From 0 to 100 %. A dot is the share of right answers, the line "
             "its 95 % ") +
         (s.is_watched ? "confidence sequence" : "interval (Wilson)") +
         ". Verdicts stand on paired differences, not on whether lines overlap. "
         "Upright: exact top-k (solid) and a random choice (dotted) of as many "
         "tokens.</p><h2>Accuracy against bytes</h2><div class=\"plots\">";
  for (size_t i = 0; i < s.cells.size(); i += s.n_strategies) {
    const std::string plot = bytes_plot(group(s, i));
    if (!plot.empty())
      out += "<figure><figcaption>" + group_name(s.cells[i]) + "</figcaption>" + plot + "</figure>";
  }
  return out +
         "</div><p class=\"soft\">Filled: no other arm is as accurate with fewer bytes, or more "
         "accurate with as many.</p>" +
         speeds(s);
}

std::string verdicts(const AbSummary& s) {
  const std::vector<size_t> numbers = verdict_numbers(s);
  const auto is_number = [&](size_t i) {
    return std::find(numbers.begin(), numbers.end(), i) != numbers.end();
  };
  const std::vector<std::string> header = verdict_header(s);
  std::string out =
      "<h2>Verdicts</h2><div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Table of "
      "verdicts\"><table class=\"verdicts\"><thead><tr>";
  for (size_t i = 0; i < header.size(); ++i)
    out += std::string("<th scope=\"col\"") + (is_number(i) ? " class=\"number\">" : ">") +
           escaped(header[i]) + "</th>";
  out += "</tr></thead><tbody>";
  for (const AbCell& cell : s.cells) {
    if (cell.is_rung) continue;
    out += "<tr class=\"" + look_of(cell) + "\">";
    const std::vector<std::string> row = verdict_row(s, cell);
    for (size_t i = 0; i < row.size(); ++i)
      out += std::string("<td") +
             (is_number(i)                   ? " class=\"number\""
              : header[i] == "against dense" ? " class=\"verdict\""
                                             : "") +
             ">" + escaped(row[i]) + "</td>";
    out += "</tr>";
  }
  return out + "</tbody></table></div>";
}

std::string depth_maps(const AbSummary& s) {
  std::string out =
      "<h2>Right answers by place of the needle</h2><p class=\"soft\">Percent; rows are lengths, " +
      std::string(s.depths.empty()
                      ? "columns the middles of fifths of the prompt, in percent of it.</p>"
                      : "columns the depths of the needle, in percent of the text around it.</p>");
  for (const Json& task : s.declared.at("tasks")) {
    out += "<h3>" + escaped(task) + "</h3><div class=\"plots\">";
    for (size_t i = 0; i < s.n_strategies; ++i)
      if (!s.cells[i].is_rung) out += depth_map(s, task, s.cells[i].label);
    out += "</div>";
  }
  return out;
}

std::string layer_maps(const AbSummary& s) {
  if (!s.has_layers()) return "";
  std::string out = "<h2>Captured attention mass by layer</h2>";
  for (size_t i = 0; i < s.cells.size(); i += s.n_strategies)
    if (const std::string map = layer_map(group(s, i)); !map.empty())
      out +=
          "<h3>" + escaped(s.cells[i].task) + format(" at %u tokens</h3>", s.cells[i].length) + map;
  return out +
         "<p class=\"soft\">Percent of dense attention's mass on the tokens that an arm attends "
         "to; 100 where it is dense.</p>";
}

std::string how(const AbSummary& s, const Json& meta) {
  std::string out = "<h2>What this stands on</h2><ul>";
  for (const std::string& note : notes(s)) out += "<li>" + escaped(note) + "</li>";
  out +=
      "</ul><details><summary>What was declared before the run, and where it was made</summary>"
      "<pre tabindex=\"0\">" +
      escaped(meta.dump(2, ' ', false, Json::error_handler_t::replace)) + "</pre></details>";
  return out;
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string to_html(const AbSummary& s, const Json& meta) {
  const std::string name = escaped(title(s));
  const Json& setup = meta.at("setup");
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
         "content=\"width=device-width,initial-scale=1\"><link rel=\"icon\" "
         "href=\"data:,\"><title>" +
         name + "</title><style>" + kStyle + "</style></head>\n<body><main><h1>" + name +
         "</h1><p class=\"soft\">" + escaped(setup.at("model")) + ", " +
         escaped(setup.at("compute")) + ", begun " + escaped(meta.at("begun")) + ", kvasir " +
         escaped(meta.at("version")) + "</p>\n" + pictures(s) + "\n" + verdicts(s) + "\n" +
         depth_maps(s) + "\n" + layer_maps(s) + "\n" + how(s, meta) + "</main></body></html>\n";
}

}  // namespace kvasir::tool
