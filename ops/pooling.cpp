// Pooling: leading dimensions (batch and channels) pass, the image is whole; its letters are those of the input (h w d) and
// of the output (p q r). Backward formulas are linear in the gradient, which comes first.
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

namespace dtensor {

void detail::add_pooling_rules() {
  add_rule("aten::avg_pool2d", by_text<"*...HW->...PQ">);
  add_rule("aten::avg_pool3d", by_text<"*...HWD->...PQR">);
  add_rule("aten::avg_pool2d_backward", by_text<"*...PQ,...HW->...HW">);
  add_rule("aten::avg_pool3d_backward", by_text<"*...PQR,...HWD->...HWD">);
  add_rule("aten::_adaptive_avg_pool2d", by_text<"*...HW->...PQ">);
  add_rule("aten::_adaptive_avg_pool3d", by_text<"*...HWD->...PQR">);
  add_rule("aten::_adaptive_avg_pool2d_backward", by_text<"*...PQ,...HW->...HW">);
  add_rule("aten::_adaptive_avg_pool3d_backward", by_text<"*...PQR,...HWD->...HWD">);
  // -> (values, where they were in the image)
  add_rule("aten::max_pool2d_with_indices", by_text<"...HW->...PQ,...PQ">);
  add_rule("aten::max_pool3d_with_indices", by_text<"...HWD->...PQR,...PQR">);
  add_rule("aten::max_pool2d_with_indices_backward", by_text<"*...PQ,...HW,...PQ->...HW">);
  add_rule("aten::max_pool3d_with_indices_backward", by_text<"*...PQR,...HWD,...PQR->...HWD">);
  add_rule("aten::adaptive_max_pool2d", by_text<"...HW->...PQ,...PQ">);
  add_rule("aten::adaptive_max_pool3d", by_text<"...HWD->...PQR,...PQR">);
  add_rule("aten::adaptive_max_pool2d_backward", by_text<"*...PQ,...HW,...PQ->...HW">);
  add_rule("aten::adaptive_max_pool3d_backward", by_text<"*...PQR,...HWD,...PQR->...HWD">);
  // (self, kernel, output, random samples): batches only, whose samples have their dimensions
  add_rule("aten::fractional_max_pool2d", by_text<"ncHW,ncS->ncPQ,ncPQ">);
  add_rule("aten::fractional_max_pool3d", by_text<"ncHWD,ncS->ncPQR,ncPQR">);
  add_rule("aten::fractional_max_pool2d_backward", by_text<"*...PQ,...HW,...PQ->...HW">);
  add_rule("aten::fractional_max_pool3d_backward", by_text<"*...PQR,...HWD,...PQR->...HWD">);
  add_rule("aten::max_unpool2d", by_text<"*...PQ,...PQ->...HW">);
  add_rule("aten::max_unpool3d", by_text<"*...PQR,...PQR->...HWD">);
}

}  // namespace dtensor
