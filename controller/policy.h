// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_POLICY_H
#define CONTROLLER_POLICY_H

#include "common/config.h"
#include "controller/core/core.h"

// The options that an operator turns the scheduler with, as the core takes them.
//
// The idea: what differs by class is a list of CLASS=VALUE, where a value alone is for all classes;
// classes that are not named keep their default. Times carry their unit.
//
//   Owns nothing.  Thread any.  Allocates never.
//   Fails      INVALID naming the option, the word and what it takes.

enum status policy_load(const struct config *config, struct core_policy *out,
                        struct error *err) MUST_USE;

#endif
