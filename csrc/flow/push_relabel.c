#include "push_relabel.h"

#define CB_FLOW_BITS 64
#include "push_relabel_impl.h"
