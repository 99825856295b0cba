// The words; see words.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/words.h"

#include <vector>

namespace kvasir::words {
namespace {

constexpr std::string_view kThings[] = {
    "stone",  "river",  "lamp",   "paper",  "bread",   "table",  "chair",  "window",  "door",
    "book",   "letter", "coin",   "rope",   "basket",  "bottle", "candle", "mirror",  "clock",
    "bell",   "drum",   "ring",   "knife",  "spoon",   "plate",  "cup",    "blanket", "coat",
    "hat",    "boot",   "glove",  "flag",   "map",     "box",    "barrel", "ladder",  "hammer",
    "nail",   "wheel",  "cart",   "boat",   "sail",    "anchor", "net",    "fish",    "horse",
    "dog",    "cat",    "bird",   "goat",   "sheep",   "apple",  "pear",   "plum",    "berry",
    "onion",  "potato", "corn",   "salt",   "sugar",   "honey",  "butter", "cheese",  "soup",
    "cake",   "wool",   "silk",   "cotton", "leather", "copper", "iron",   "silver",  "gold",
    "glass",  "clay",   "sand",   "wood",   "leaf",    "root",   "branch", "flower",  "seed",
    "grass",  "cloud",  "rain",   "snow",   "wind",    "storm",  "smoke",  "fire",    "ash",
    "engine", "motor",  "pump",   "pipe",   "wire",    "cable",  "brush",  "paint",   "pencil",
    "ink",    "ticket", "wallet", "bag",    "camera"};
constexpr std::string_view kPlaces[] = {
    "harbor",  "garden",  "market",   "station", "bridge",  "tower",  "church", "school",
    "library", "kitchen", "cellar",   "attic",   "yard",    "barn",   "mill",   "forest",
    "meadow",  "valley",  "mountain", "hill",    "cave",    "island", "beach",  "lake",
    "pond",    "street",  "square",   "corner",  "village", "city",   "castle", "palace",
    "museum",  "theater", "office",   "factory", "shop",    "bakery", "hotel",  "hospital",
    "prison",  "camp",    "field",    "orchard", "desert",  "coast",  "road",   "path",
    "gate",    "wall",    "roof",     "porch",   "hall",    "tunnel", "well",   "dock"};
constexpr std::string_view kPeople[] = {
    "farmer",   "baker",    "sailor", "teacher", "doctor", "nurse",   "painter", "singer",
    "dancer",   "writer",   "poet",   "judge",   "lawyer", "soldier", "captain", "pilot",
    "driver",   "miner",    "hunter", "fisher",  "weaver", "tailor",  "potter",  "smith",
    "cook",     "waiter",   "porter", "guard",   "clerk",  "student", "child",   "boy",
    "girl",     "mother",   "father", "brother", "sister", "uncle",   "cousin",  "friend",
    "stranger", "neighbor", "guest",  "king",    "queen",  "prince",  "monk",    "merchant"};
constexpr std::string_view kAdjectives[] = {
    "quiet",  "amber",   "red",    "green",  "blue",   "yellow", "white",  "black",  "brown",
    "grey",   "pink",    "purple", "orange", "bright", "dark",   "pale",   "old",    "young",
    "new",    "small",   "large",  "long",   "short",  "tall",   "narrow", "wide",   "deep",
    "heavy",  "light",   "soft",   "hard",   "rough",  "smooth", "warm",   "cold",   "cool",
    "dry",    "wet",     "clean",  "dusty",  "empty",  "full",   "broken", "strong", "weak",
    "quick",  "slow",    "gentle", "wild",   "calm",   "loud",   "sweet",  "bitter", "sour",
    "fresh",  "plain",   "fine",   "rich",   "poor",   "proud",  "shy",    "brave",  "clever",
    "honest", "lucky",   "happy",  "sad",    "angry",  "tired",  "hungry", "lonely", "famous",
    "simple", "strange", "common", "rare",   "round",  "flat",   "sharp",  "hollow", "distant",
    "hidden", "open",    "secret", "frozen", "golden", "wooden", "ancient"};
constexpr std::string_view kActions[] = {
    "carried", "found",   "lost",     "bought",   "sold",     "made",    "broke",  "fixed",
    "cleaned", "painted", "moved",    "lifted",   "dropped",  "pulled",  "pushed", "opened",
    "closed",  "counted", "weighed",  "measured", "washed",   "burned",  "buried", "hid",
    "showed",  "gave",    "took",     "kept",     "left",     "watched", "heard",  "liked",
    "feared",  "wanted",  "needed",   "used",     "drew",     "held",    "tied",   "filled",
    "emptied", "covered", "shared",   "borrowed", "returned", "noticed", "missed", "praised",
    "ordered", "packed",  "polished", "mended",   "sorted",   "stored",  "traded", "wrapped"};
constexpr std::string_view kMovements[] = {
    "walked",   "ran",     "slept",  "waited",  "rested",    "worked",  "played",   "sang",
    "danced",   "laughed", "cried",  "talked",  "whispered", "shouted", "listened", "smiled",
    "stood",    "sat",     "knelt",  "jumped",  "climbed",   "fell",    "swam",     "rode",
    "traveled", "arrived", "stayed", "hurried", "wandered",  "stopped", "turned",   "dreamed"};
constexpr std::string_view kAdverbs[] = {
    "slowly", "quickly", "quietly",  "gladly", "rarely", "often",  "always",  "never",
    "sadly",  "kindly",  "boldly",   "neatly", "gently", "loudly", "calmly",  "early",
    "late",   "alone",   "together", "again",  "twice",  "almost", "finally", "suddenly"};
constexpr std::string_view kTimes[] = {
    "in the morning", "at noon",        "after dinner",       "before dawn",   "in the evening",
    "at night",       "last winter",    "last summer",        "in the spring", "every day",
    "once a week",    "on a rainy day", "during the holiday", "after the war", "before breakfast",
    "that same hour", "some years ago", "a month later",      "by the end",    "for a while"};
constexpr std::string_view kJoints[] = {"and",    "but",   "because", "while",
                                        "before", "after", "until",   "so"};

}  // namespace

List things() { return kThings; }
List places() { return kPlaces; }
List people() { return kPeople; }
List adjectives() { return kAdjectives; }
List actions() { return kActions; }
List movements() { return kMovements; }
List adverbs() { return kAdverbs; }
List times() { return kTimes; }
List joints() { return kJoints; }

List keys() {
  static const std::vector<std::string_view> all = [] {
    std::vector<std::string_view> made;
    for (const List list : {things(), places(), adjectives()})
      made.insert(made.end(), list.begin(), list.end());
    return made;
  }();
  return all;
}

}  // namespace kvasir::words
