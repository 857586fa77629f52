// Everything: tensors, plans, data parallel training.
#pragma once

#include "dtensor/all.h"
#include "parallelize/broadcast_data.h"
#include "parallelize/clip_grad_norm.h"
#include "parallelize/custom_style.h"
#include "parallelize/explain_plan.h"
#include "parallelize/gradient_synchronization.h"
#include "parallelize/linear_cross_entropy.h"
#include "parallelize/model_file.h"
#include "parallelize/optimizer_state.h"
#include "parallelize/parallelize_module.h"
#include "parallelize/plan.h"
#include "parallelize/plan_check.h"
#include "parallelize/points.h"
#include "parallelize/save.h"
#include "parallelize/script_module.h"
#include "parallelize/vocab_parallel_cross_entropy.h"
