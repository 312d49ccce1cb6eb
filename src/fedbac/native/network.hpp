// The networks the kernel knows, the arguments of its entry points, and where everything lies in a thread's workspace.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fedbac {

using index = std::ptrdiff_t;

constexpr int max_steps = 64;    // as in __init__.py
constexpr int max_linears = 8;   // likewise
constexpr int max_parts = 16;
constexpr int chunk_size = 32;  // samples whose activations are kept at once; divisible by every number of lanes

// A block is a convolution of stride 1, ReLU and 2x2 max pooling at once: an odd last row or column of the convolution is
// never computed, and the gradient of its weights visits only what won. The others are one layer each.
enum class Kind : std::int32_t { block, convolution, max_pool, average_pool, norm, add };

// A layer of images. It reads the images of an earlier step, or those given.
struct Step {
  Kind kind;
  int from, other;  // the steps it reads, -1: the images; `other` is what `add` adds
  int in_channels, in_height, in_width;  // a block's with its padding
  int out_channels, out_height, out_width;
  int kernel, kernel_width, stride, stride_width, padding, groups;
  float epsilon;       // of a norm
  bool relu;           // at its end
  index weight, bias;  // offsets into the flat parameters; -1: none

  int border;           // zero pixels around its output, as convolutions that read it pad
  int gradient_border;  // zero pixels around the gradient of its output, as the gradient of its input reads them
  bool adds, other_adds;  // whether a later step reads the same, so that a gradient lies there already

  index in_size() const { return index(in_channels) * in_height * in_width; }
  index out_size() const { return index(out_channels) * out_height * out_width; }
  index taps() const { return index(kernel) * kernel; }
  index positions() const { return index(out_height) * out_width; }
  bool convolves() const { return kind == Kind::block || kind == Kind::convolution; }
};

// Floats of the sums of the gradient of a convolution's weights: for some outputs, those of all planes that share a strip.
constexpr int most_outputs = 3;
constexpr int held_sums = 128;  // of as many planes as that makes, but of one at least

inline index held_size(const Step& layer, int lanes) {
  const index least = most_outputs * (layer.kernel == 1 ? layer.in_channels : layer.taps());
  return ((least > held_sums ? least : held_sums) + lanes) * lanes;
}

struct Linear {
  int inputs, outputs;
  bool relu;
  index weight, bias;  // bias -1: none
};

struct Network {
  int channels, height, width;
  int border;  // zero pixels around the images
  int num_steps, num_linears;
  Step steps[max_steps];
  Linear linears[max_linears];
  index num_parameters;

  index pixels() const { return index(channels) * height * width; }
  int classes() const { return linears[num_linears - 1].outputs; }
};

// The C interface passes one struct per call. All arrays are dense and in row-major order.
// Axes: J jobs, P parts, D parameters of a network, C channels, S visits of all jobs, T networks in the table.
extern "C" {

struct fedbac_images {
  const void* pixels;          // [N, C, H, W]
  std::int32_t is_float;       // 0: uint8, read as pixel * scale + shift; 1: float32, read as it is
  const float* scale;          // [C]
  const float* shift;          // [C]
  const std::int64_t* labels;  // [N]
};

struct fedbac_train_call {
  const std::int32_t* shape;  // channels, height, width, steps, linears, and each of them as `describe` reads it
  std::int32_t num_parts, num_threads, instruction_set;
  fedbac_images images;

  std::int64_t num_jobs;
  const float* networks;               // [T, D]
  const std::int64_t* start;           // [J, P] rows of `networks`
  const std::int32_t* schedule;        // [S] examples in the order of their visits
  const std::int64_t* schedule_begin;  // [J]
  const std::int64_t* num_examples;    // [J] per epoch
  const std::int64_t* num_epochs;      // [J]
  std::int64_t batch_size;
  std::int32_t drop_last;
  const std::int8_t* crop;   // [S, 2] or null: pixel (y, x) is taken from (y + dy, x + dx); outside, raw pixel 0
  const std::uint8_t* flip;  // [S] or null: mirror left to right, after the crop

  const float* learning_rate;       // [J]
  float momentum;
  const float* weight_decay;        // [P] times the weights is added to the gradient after clipping
  const float* l2;                  // [P] times the weights, less their anchor, is added to the gradient before clipping
  const float* anchors;             // [A, D]
  const std::int64_t* anchor;       // [J, P] rows of `anchors`; negative: zero
  const std::int64_t* moving_begin;  // [P] the weights that move, whole layers: the others keep still and do not
  const std::int64_t* moving_end;    // [P] count for the norm; nothing moves where both are equal
  float max_norm;             // 0: no clipping
  std::int32_t clip_per_part;

  const float* shift;        // [J, P, D] or null: what is added to the clipped gradient
  const float* velocity_in;  // [J, P, D] or null: zero
  float* velocity_out;       // [J, P, D] or null
  float* trained;            // [J, P, D]
  double* loss;              // [J] mean cross-entropy over all visits, 0 when there are none
  double* square;            // [J] mean of the squared cross-entropies
  double* epoch_loss;        // [J, max_epochs]; entries past a job's epochs are left alone
  std::int64_t max_epochs;
  std::uint8_t* finite;      // [J]
  const std::int32_t* stop;  // null, or a number that another thread makes other than 0 to end the call early
};

struct fedbac_evaluate_call {
  const std::int32_t* shape;
  std::int32_t num_parts, num_threads, instruction_set;
  fedbac_images images;

  const float* networks;       // [T, D]
  const std::int64_t* models;  // [V, P] rows of `networks`
  std::int64_t num_groups;
  const std::int32_t* examples;     // the groups one after another
  const std::int64_t* group_begin;  // [G + 1]
  std::int64_t num_pairs;
  const std::int64_t* pair_model;  // [pairs]
  const std::int64_t* pair_group;  // [pairs]

  double* loss;              // [pairs] summed cross-entropy
  std::int64_t* correct;     // [pairs]
  const std::int32_t* stop;  // as above
};
}

// Whether a call is to end early: what it has written by then means nothing.
inline bool stopped(const std::int32_t* stop) { return stop && __atomic_load_n(stop, __ATOMIC_RELAXED); }

// Offsets, in floats, of the buffers in one thread's workspace.
//
// Activations hold the batch innermost: `lanes` samples lie side by side, one vector per pixel or feature. Up to the last
// step each block of `lanes` samples has its own contiguous image; from there on all blocks of a chunk lie side by side, so
// that a linear layer reads its weights once per chunk.
struct Layout {
  // of each part, relative to the part's own slice; `kept` is what a step keeps for its gradient: winners, or statistics
  index value[max_steps], kept[max_steps], linear_out[max_linears];
  index packed[max_steps], packed_back[max_steps];
  index part_begin, part_size;
  // shared by the parts
  index input, staging, logits, feature_gradient[2], transposed, value_gradient[max_steps], dense_gradient[max_steps];
  index patch_images, patch_values, patch_offsets, patch_sums[max_steps], weight_sums;
  index gradient, velocity;
  index segment_logits;
  index size;
};

// One group's examples, or a run of them, to be evaluated by one thread.
struct Segment {
  const std::int32_t* examples;
  int count;
  const std::int64_t* networks;  // distinct networks of all its models
  int num_networks;
  const std::int32_t* slots;     // [num_pairs, P] which of `networks` each model sums
  int num_pairs;
  double* loss;                  // [num_pairs]
  std::int64_t* correct;         // [num_pairs]
};

// What one instruction set provides.
struct InstructionSet {
  const char* name;
  int lanes;
  void (*train)(const fedbac_train_call&, const Network&, const Layout&, float* workspace, index job);
  void (*evaluate)(const fedbac_evaluate_call&, const Network&, const Layout&, float* workspace, const Segment&);
};

}  // namespace fedbac
