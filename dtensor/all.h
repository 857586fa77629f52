// Everything up to the tensor itself. <parallelize/all.h> adds plans and training.
#pragma once

#include "comm/counters.h"
#include "comm/device_mesh.h"
#include "comm/policy.h"
#include "comm/run_ranks.h"
#include "comm/world.h"
#include "dtensor/autocast_scope.h"
#include "dtensor/deferred_build.h"
#include "dtensor/dtensor.h"
#include "dtensor/explain.h"
#include "dtensor/function.h"
#include "dtensor/loss_parallel.h"
#include "dtensor/print.h"
#include "dtensor/random.h"
#include "placements/error.h"
#include "placements/layout.h"
#include "placements/placement.h"
