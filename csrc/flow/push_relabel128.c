#include "push_relabel.h"

#define CB_FLOW_BITS 128
#include "push_relabel_impl.h"
