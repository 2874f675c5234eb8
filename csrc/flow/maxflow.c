#include "maxflow.h"

#define CB_FLOW_BITS 64
#include "maxflow_impl.h"
