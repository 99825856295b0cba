// The grammar of the filler:
//   sentence  = [time ","] clause [joint clause] ["." | adverb "." | time "."]
//   clause    = who (action what [where] | movement where | "was" adjective)
//   who       = article [adjective] person;  what, where likewise
// SPDX-License-Identifier: Apache-2.0
#include "core/task/prose.h"

#include <cctype>

#include "core/task/words.h"

namespace kvasir {
namespace {

constexpr std::string_view kNear[] = {"in", "near", "behind", "at", "by", "beside", "outside"};

bool starts_with_vowel(std::string_view word) {
  return std::string_view("aeiou").find(word[0]) != std::string_view::npos &&
         !word.starts_with("uni") && !word.starts_with("use");
}

class Grammar {
 public:
  explicit Grammar(TaskRandom& random) : random_(random) {}

  std::string sentence() {
    const bool opens = random_.chance(6);
    if (opens) {
      word(random_.pick(words::times()));
      text_ += ",";
    }
    clause();
    if (random_.chance(3)) {
      word(random_.pick(words::joints()));
      clause();
    }
    if (random_.chance(5)) word(random_.pick(words::adverbs()));
    if (!opens && random_.chance(4)) word(random_.pick(words::times()));
    text_[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text_[0])));
    return text_ + ".";
  }

 private:
  void word(std::string_view text) {
    if (!text_.empty()) text_ += ' ';
    text_ += text;
  }

  void noun(words::List list) {
    const std::string_view name = random_.pick(list);
    const std::string_view quality =
        random_.chance(3) ? random_.pick(words::adjectives()) : std::string_view();
    const std::string_view first = quality.empty() ? name : quality;
    word(random_.below(3) ? "the" : starts_with_vowel(first) ? "an" : "a");
    if (!quality.empty()) word(quality);
    word(name);
  }

  void where() {
    word(random_.pick(std::span<const std::string_view>(kNear)));
    noun(words::places());
  }

  void clause() {
    switch (random_.below(5)) {
      case 0:
        noun(words::people());
        word(random_.pick(words::movements()));
        return where();
      case 1:
        noun(random_.chance(2) ? words::things() : words::places());
        word("was");
        return word(random_.pick(words::adjectives()));
      default:
        noun(words::people());
        word(random_.pick(words::actions()));
        noun(words::things());
        if (random_.chance(2)) where();
    }
  }

  TaskRandom& random_;
  std::string text_;
};

}  // namespace

std::string prose_sentence(TaskRandom& random) { return Grammar(random).sentence(); }

// [time] [place] who what-was-done [，who what-was-done] 。
std::string prose_sentence_zh(TaskRandom& random) {
  constexpr std::string_view kTimes[] = {"清晨", "中午", "傍晚", "去年冬天", "每天", "战争之后"};
  constexpr std::string_view kPlaces[] = {"在市场", "在河边", "在厨房", "在桥上", "在村口"};
  constexpr std::string_view kPeople[] = {"农夫", "面包师", "水手", "老师", "医生", "画家",
                                          "裁缝", "猎人",   "学生", "国王", "商人", "木匠"};
  constexpr std::string_view kDeeds[] = {
      "卖了一盏灯", "修好了旧椅子", "洗干净了毯子", "丢了一枚硬币", "打开了木箱", "唱起了歌",
      "等了很久",   "买了新鲜的鱼", "数了数绵羊",   "慢慢走回家",   "点燃了蜡烛", "画了一座山"};
  using List = std::span<const std::string_view>;
  std::string text;
  if (random.chance(3)) text += random.pick(List(kTimes));
  if (random.chance(3)) text += random.pick(List(kPlaces));
  for (const bool goes_on : {true, false}) {
    text += random.pick(List(kPeople));
    text += random.pick(List(kDeeds));
    if (!goes_on || random.chance(2)) break;
    text += "，";
  }
  return text + "。";
}

}  // namespace kvasir
