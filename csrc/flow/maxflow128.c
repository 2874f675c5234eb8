#include "maxflow.h"

#define CB_FLOW_BITS 128
#include "maxflow_impl.h"
