// Alternatives; see alternatives.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/alternatives.h"

#include <algorithm>
#include <map>

#include "core/config/raw.h"

namespace kvasir {
namespace {

// Null in plugins that were built before the fields came.
const char* group_of(const kvasir_option_schema& o) {
  return KVASIR_HAS(&o, kvasir_option_schema, group) ? o.group : nullptr;
}
const char* anchor_of(const kvasir_option_schema& o) {
  return KVASIR_HAS(&o, kvasir_option_schema, with) ? o.with : nullptr;
}

using Groups = std::map<std::string, std::vector<size_t>>;  // places in the schema

Groups groups_of(const Schema& schema) {
  Groups groups;
  for (size_t i = 0; i < schema.size(); ++i)
    if (const char* group = group_of(*schema[i])) groups[group].push_back(i);
  return groups;
}

size_t place_of(const Schema& schema, const std::string& key) {
  const auto named = [&](const kvasir_option_schema* o) { return key == o->key; };
  return static_cast<size_t>(std::find_if(schema.begin(), schema.end(), named) - schema.begin());
}

// The key as the schema has it, and where the user wrote it, under which name.
std::string said(const kvasir_option_schema& option, const OptionSetting& setting) {
  const std::string name =
      setting.key == option.key ? setting.key : setting.key + " (" + option.key + ")";
  return name + " (" + setting.origin.text() + ")";
}

class Decision {
 public:
  Decision(const Schema& schema, const std::vector<const OptionSetting*>& set)
      : schema_(schema), set_(set), verdicts_(schema.size()) {}

  std::vector<OptionVerdict> make() {
    const Groups groups = groups_of(schema_);
    const auto refines = [&](size_t i) { return anchor_of(*schema_[i]) != nullptr; };
    const auto decide_all = [&](bool with_refining) {
      for (const auto& [name, members] : groups)
        if (std::any_of(members.begin(), members.end(), refines) == with_refining) decide(members);
    };
    decide_all(false);
    for (size_t i = 0; i < schema_.size(); ++i)
      if (refines(i)) check_anchor(i);
    decide_all(true);
    return std::move(verdicts_);
  }

 private:
  using Kind = OptionVerdict::Kind;
  bool is_asked(size_t i) const { return verdicts_[i].kind == Kind::kTaken && set_[i]; }

  void decide(const std::vector<size_t>& members) {
    const size_t none = schema_.size();
    size_t winner = none;
    for (const size_t i : members) {
      if (!is_asked(i)) continue;
      if (winner == none || goes_before(i, winner)) winner = i;
    }
    if (winner == none) return;
    for (const size_t i : members) {
      if (i == winner || verdicts_[i].kind != Kind::kTaken) continue;
      verdicts_[i] = {set_[i] ? Kind::kOverruled : Kind::kUnasked,
                      said(*schema_[winner], *set_[winner]) + " decides"};
      if (set_[i]) add_winner_note(winner, i);
    }
  }

  void add_winner_note(size_t winner, size_t loser) {
    std::string& note = verdicts_[winner].note;
    note += (note.empty() ? "decides, not " : ", ") + said(*schema_[loser], *set_[loser]);
  }

  // The command line before the environment, that before files, a file before those it includes.
  bool goes_before(size_t a, size_t b) const {
    const Origin &x = set_[a]->origin, &y = set_[b]->origin;
    if (x.source != y.source) return x.source > y.source;
    if (x.source == Origin::Source::kFile && x.name != y.name) return set_[a] > set_[b];
    const bool a_later = set_[a] > set_[b];
    const size_t later = a_later ? a : b, earlier = a_later ? b : a;
    throw config::error_at(set_[later]->origin,
                           set_[later]->key + " and " + said(*schema_[earlier], *set_[earlier]) +
                               " are two ways to say one thing: keep one of them");
  }

  void check_anchor(size_t i) {
    const size_t anchor = place_of(schema_, anchor_of(*schema_[i]));
    const bool has_value = set_[anchor] || !(schema_[anchor]->flags & KVASIR_OPTION_OPTIONAL);
    if (verdicts_[anchor].kind == Kind::kTaken && has_value) return;
    const std::string key = schema_[anchor]->key;
    if (!set_[i]) {
      verdicts_[i] = {Kind::kUnasked, "goes with " + key};
    } else if (set_[anchor]) {
      verdicts_[i] = {Kind::kOverruled, "goes with " + key + ", and " + verdicts_[anchor].note};
    } else {
      throw config::error_at(set_[i]->origin, set_[i]->key + " goes with " + key +
                                                  ", which is not set: set it, or drop " +
                                                  set_[i]->key);
    }
  }

  const Schema& schema_;
  const std::vector<const OptionSetting*>& set_;
  std::vector<OptionVerdict> verdicts_;
};

}  // namespace

std::string check_alternatives(const Schema& schema, size_t& which) {
  const Groups groups = groups_of(schema);
  for (const auto& [name, members] : groups) {
    which = members[0];
    if (members.size() == 1) return "it is the only one of its group " + name;
    size_t n_defaults = 0;
    for (const size_t i : members) {
      which = i;
      if (schema[i]->flags & KVASIR_OPTION_REQUIRED) return "it is REQUIRED and in a group";
      if (!(schema[i]->flags & KVASIR_OPTION_OPTIONAL) && ++n_defaults > 1)
        return "it is the second of its group " + name + " that has a default";
    }
  }
  for (which = 0; which < schema.size(); ++which) {
    const char* with = anchor_of(*schema[which]);
    if (!with) continue;
    const size_t anchor = place_of(schema, with);
    const char* group = anchor == schema.size() ? nullptr : group_of(*schema[anchor]);
    if (!group) return std::string("it goes with ") + with + ", which is in no group";
    for (const size_t i : groups.at(group))
      if (anchor_of(*schema[i]))
        return std::string("it goes with ") + with + ", whose group depends on another option";
  }
  return {};
}

std::vector<OptionVerdict> decide_alternatives(const Schema& schema,
                                               const std::vector<const OptionSetting*>& set) {
  return Decision(schema, set).make();
}

}  // namespace kvasir
