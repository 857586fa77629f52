// One function per file of rules; called once, by rule_registry.cpp.
#pragma once

namespace dtensor::detail {

void add_pointwise_rules();      // pointwise.cpp
void add_copy_rules();           // copy.cpp: clone, casts, copy_, detach
void add_matrix_rules();         // matrix.cpp: mm, bmm, addmm, matmul
void add_view_rules();           // view.cpp
void add_reduction_rules();      // reduction.cpp: sum, mean, amax, norm, ...
void add_statistics_rules();     // statistics.cpp: var, logsumexp, argmax, all, ...
void add_normalization_rules();  // normalization.cpp: layer norm, rms norm
void add_softmax_rules();        // softmax.cpp
void add_loss_rules();           // loss.cpp: mse_loss, huber_loss, ...
void add_classification_loss_rules();  // classification_loss.cpp: nll_loss
void add_embedding_rules();      // embedding.cpp
void add_attention_rules();      // attention.cpp
void add_join_split_rules();     // join_split.cpp: cat, stack, split, slice, select
void add_factory_rules();        // factory.cpp: *_like, new_*, fill_, zero_
void add_random_rules();         // random.cpp: dropout, bernoulli_, normal_, ...

}  // namespace dtensor::detail
