// One function per file of rules; called once, by rule_registry.cpp.
#pragma once

namespace dtensor::detail {

void add_pointwise_rules();      // pointwise.cpp
void add_copy_rules();           // copy.cpp: clone, casts, copy_, detach
void add_matrix_rules();         // matrix.cpp: mm, bmm, addmm, matmul
void add_added_product_rules();  // added_product.cpp: addmv, addbmm, baddbmm
void add_linear_algebra_rules();  // linear_algebra.cpp: solvers, decompositions
void add_diagonal_rules();       // diagonal.cpp: diagonal, diag_embed, ...
void add_fourier_rules();        // fourier.cpp
void add_distance_rules();       // distance.cpp: cdist, renorm
void add_view_rules();           // view.cpp
void add_reduction_rules();      // reduction.cpp: sum, mean, amax, norm, ...
void add_statistics_rules();     // statistics.cpp: var, logsumexp, argmax, all, ...
void add_normalization_rules();  // normalization.cpp: layer norm, rms norm
void add_convolution_rules();    // convolution.cpp
void add_pooling_rules();        // pooling.cpp
void add_resampling_rules();     // resampling.cpp: upsampling, padding, grid_sampler
void add_pixel_rules();          // pixels.cpp: pixel_shuffle, im2col, col2im, channel_shuffle
void add_batch_normalization_rules();  // batch_normalization.cpp
void add_group_normalization_rules();  // group_normalization.cpp
void add_softmax_rules();        // softmax.cpp
void add_loss_rules();           // loss.cpp: mse_loss, huber_loss, ...
void add_classification_loss_rules();  // classification_loss.cpp: nll_loss
void add_ctc_loss_rules();       // ctc_loss.cpp
void add_cross_entropy_rules();  // cross_entropy.cpp: cross entropy from logits, fused
void add_linear_cross_entropy_rules();  // linear_cross_entropy.cpp: a head and its loss
void add_embedding_rules();      // embedding.cpp
void add_attention_rules();      // attention.cpp
void add_join_split_rules();     // join_split.cpp: cat, stack, split, slice, select
void add_rearranging_rules();    // rearranging.cpp: flip, roll, repeat, unfold, slice_scatter, ...
void add_sorting_rules();        // sorting.cpp: sort, topk, median, cumsum, ...
void add_indexing_rules();       // indexing.cpp: gather, index_select, index, ...
void add_scatter_rules();        // scatter.cpp: scatter, index_add, index_put, ...
void add_flat_scatter_rules();   // flat_scatter.cpp: masked_scatter, put
void add_factory_rules();        // factory.cpp: *_like, new_*, fill_, zero_
void add_random_rules();         // random.cpp: dropout, bernoulli_, normal_, random_, *_like, ...
void add_random_choice_rules();  // random_choice.cpp: multinomial

}  // namespace dtensor::detail
