// The contracts of all ops in op_list.inc.
#pragma once

#include "worker_runtime/ops/activation.h"
#include "worker_runtime/ops/adamw.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/bias.h"
#include "worker_runtime/ops/cross_entropy.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/embedding.h"
#include "worker_runtime/ops/float8.h"
#include "worker_runtime/ops/head_norm.h"
#include "worker_runtime/ops/layer_norm.h"
#include "worker_runtime/ops/matmul.h"
#include "worker_runtime/ops/muon.h"
#include "worker_runtime/ops/rms_norm.h"
#include "worker_runtime/ops/rope.h"
#include "worker_runtime/ops/sgd.h"
#include "worker_runtime/ops/token_positions.h"
