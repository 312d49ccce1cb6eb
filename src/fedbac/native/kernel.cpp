// Training and evaluation of many small convolutional networks on a CPU, one network per thread at a time.
//
// The passes are written once, with the compiler's vector types, and compiled for several instruction sets; the best one the
// processor has is chosen at run time. A result depends on the instruction set, never on the number of threads.

#include "network.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace fedbac {

#define FEDBAC_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define FEDBAC_UNROLL _Pragma("unroll")
#define FEDBAC_TARGET_BEGIN(features) \
  FEDBAC_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define FEDBAC_TARGET_END _Pragma("clang attribute pop")
#else
#define FEDBAC_UNROLL _Pragma("GCC unroll 64")
#define FEDBAC_TARGET_BEGIN(features) _Pragma("GCC push_options") FEDBAC_PRAGMA(GCC target(features))
#define FEDBAC_TARGET_END _Pragma("GCC pop_options")
#endif

#if defined(__x86_64__)

#define FEDBAC_LANES 16
#define FEDBAC_REGISTERS 32
FEDBAC_TARGET_BEGIN("avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi,bmi2")
namespace v4 {
#include "instruction_set.inc"
}
FEDBAC_TARGET_END
#undef FEDBAC_LANES
#undef FEDBAC_REGISTERS

#define FEDBAC_LANES 8
#define FEDBAC_REGISTERS 16
FEDBAC_TARGET_BEGIN("avx2,fma,bmi,bmi2")
namespace v3 {
#include "instruction_set.inc"
}
FEDBAC_TARGET_END
#undef FEDBAC_LANES
#undef FEDBAC_REGISTERS

#define FEDBAC_REGISTERS 16
#else
#define FEDBAC_REGISTERS 32  // ARM and POWER; where there are fewer the compiler spills, and the result is the same
#endif

#define FEDBAC_LANES 4
namespace base {
#include "instruction_set.inc"
}

namespace {

enum Status { ok = 0, bad_shape = 1, no_instruction_set = 2, out_of_memory = 3, ended_early = 4 };

const InstructionSet instruction_sets[] = {
#if defined(__x86_64__)
    {"v4", v4::lanes, v4::train, v4::evaluate},
    {"v3", v3::lanes, v3::train, v3::evaluate},
#endif
    {"base", base::lanes, base::train, base::evaluate},
};
constexpr int num_instruction_sets = sizeof(instruction_sets) / sizeof(instruction_sets[0]);

bool supported(int set) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2");
  if (set == 0)
    return v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (set == 1) return v3;
#endif
  return set >= 0 && set < num_instruction_sets;
}

// The images that a step reads.
struct Shape {
  int channels, height, width;
};

Shape shape_of(const Network& network, int s) {
  if (s < 0) return Shape{network.channels, network.height, network.width};
  const Step& step = network.steps[s];
  return Shape{step.out_channels, step.out_height, step.out_width};
}

// How many zero pixels must lie around the gradient of a convolution's output along one axis of its input.
int gradient_border(int size, int outputs, int kernel, int stride, int padding) {
  int border = 0;
  for (int number = 0; number < std::min(stride, kernel); number++) {
    const int first = ((number - padding) % stride + stride) % stride;  // as phase_of
    if (first >= size) continue;
    const int begin = (first + padding - number) / stride, taps = (kernel - 1 - number) / stride + 1;
    const int end = begin + (size - 1 - first) / stride;
    border = std::max({border, taps - 1 - begin, end - (outputs - 1)});
  }
  return border;
}

// Fill in a step from its numbers in a shape; false when there is no such step.
bool describe(const std::int32_t*& shape, const Network& network, int s, Step& step) {
  step.kind = Kind(*shape++);
  step.from = *shape++, step.other = *shape++, step.out_channels = *shape++;
  step.kernel = *shape++, step.kernel_width = *shape++, step.stride = *shape++, step.stride_width = *shape++;
  step.padding = *shape++, step.groups = *shape++;
  std::memcpy(&step.epsilon, shape++, sizeof step.epsilon);
  step.relu = *shape++, step.weight = *shape++, step.bias = *shape++;
  if (step.from < -1 || step.from >= s || step.other < -1 || step.other >= s) return false;
  const Shape in = shape_of(network, step.from), other = shape_of(network, step.other);
  step.in_channels = in.channels, step.in_height = in.height, step.in_width = in.width;
  const bool pools = step.kind == Kind::max_pool || step.kind == Kind::average_pool;
  step.out_height = in.height, step.out_width = in.width;
  if (step.convolves() || pools) {
    if (step.kernel < 1 || step.kernel_width < 1 || step.stride < 1 || step.stride_width < 1 || step.padding < 0) return false;
    step.out_height = in.height + 2 * step.padding - step.kernel;
    step.out_width = in.width + 2 * step.padding - step.kernel_width;
    if (step.out_height < 0 || step.out_width < 0) return false;
    step.out_height = step.out_height / step.stride + 1, step.out_width = step.out_width / step.stride_width + 1;
  }
  if (!step.convolves()) step.out_channels = in.channels;
  switch (step.kind) {
    case Kind::block:
      step.out_height /= 2, step.out_width /= 2;
      if (step.stride != 1 || step.bias < 0 || step.from < -1 || !step.relu || step.out_height < 1 || step.out_width < 1) return false;
      step.in_height += 2 * step.padding, step.in_width += 2 * step.padding;
      [[fallthrough]];
    case Kind::convolution:
      return step.out_channels >= 1 && step.kernel == step.kernel_width && step.stride == step.stride_width && step.weight >= 0;
    case Kind::max_pool: return 2 * step.padding <= std::min(step.kernel, step.kernel_width);
    case Kind::average_pool: return step.padding == 0;
    case Kind::norm: return step.groups >= 1 && step.out_channels % step.groups == 0;
    case Kind::add:
      return step.from != step.other && other.channels == in.channels && other.height == in.height && other.width == in.width;
  }
  return false;
}

bool describe(const std::int32_t* shape, Network& network) {
  network = Network{};
  network.channels = *shape++;
  network.height = *shape++;
  network.width = *shape++;
  network.num_steps = *shape++;
  network.num_linears = *shape++;
  if (network.channels < 1 || network.height < 1 || network.width < 1 || network.num_steps < 0 ||
      network.num_steps > max_steps || network.num_linears < 1 || network.num_linears > max_linears)
    return false;
  bool read[max_steps] = {};
  for (int s = 0; s < network.num_steps; s++) {
    Step& step = network.steps[s];
    if (!describe(shape, network, s, step)) return false;
    if (step.convolves()) {
      network.num_parameters += step.out_channels * step.in_channels * step.taps() + (step.bias < 0 ? 0 : step.out_channels);
      int& border = step.from < 0 ? network.border : network.steps[step.from].border;
      border = std::max(border, step.padding);
      if (step.kind == Kind::convolution && step.from >= 0)
        step.gradient_border = std::max(
            gradient_border(step.in_height, step.out_height, step.kernel, step.stride, step.padding),
            gradient_border(step.in_width, step.out_width, step.kernel, step.stride, step.padding));
    } else if (step.kind == Kind::norm) {
      network.num_parameters += (step.weight < 0 ? 0 : step.out_channels) + (step.bias < 0 ? 0 : step.out_channels);
    }
    if (step.from >= 0) read[step.from] = true;
    if (step.kind == Kind::add && step.other >= 0) read[step.other] = true;
  }
  // The last step alone is not read by others.
  for (int s = 0; s < network.num_steps; s++)
    if (read[s] != (s + 1 < network.num_steps)) return false;
  bool later[max_steps] = {};  // read by a later step
  for (int s = network.num_steps - 1; s >= 0; s--) {
    Step& step = network.steps[s];
    const auto reads = [&](int from) { return from >= 0 && std::exchange(later[from], true); };
    step.adds = reads(step.from);
    if (step.kind == Kind::add) step.other_adds = reads(step.other);
    // A block reads its padding as part of the image.
    if (step.kind == Kind::block && (step.from < 0 ? network.border : network.steps[step.from].border) != step.padding) return false;
  }
  const Shape out = shape_of(network, network.num_steps - 1);
  int features = out.channels * out.height * out.width;
  for (int l = 0; l < network.num_linears; l++) {
    Linear& layer = network.linears[l];
    layer.inputs = features;
    layer.outputs = features = *shape++;
    layer.relu = *shape++, layer.weight = *shape++, layer.bias = *shape++;
    if (features < 1 || layer.weight < 0) return false;
    network.num_parameters += index(layer.inputs) * layer.outputs + (layer.bias < 0 ? 0 : layer.outputs);
  }
  return true;
}

// Gives out offsets that start on a cache line.
struct Offsets {
  index size = 0;
  index take(index floats) { return std::exchange(size, size + (floats + 15) / 16 * 16); }
};

Layout make_layout(const Network& network, int lanes, int num_parts, bool training, bool staging, index segment_logits) {
  const auto image = [](int channels, int height, int width, int border) {
    return index(channels) * (height + 2 * border) * (width + 2 * border);
  };
  Layout layout{};
  Offsets part;
  index features = 0, inputs = 0;
  for (int s = 0; s < network.num_steps; s++) {
    const Step& step = network.steps[s];
    const index weights = step.convolves() ? step.out_channels * step.in_channels * step.taps() : 0;
    const index kept = step.kind == Kind::norm ? 2 * step.groups
                       : training && (step.kind == Kind::block || step.kind == Kind::max_pool) ? step.out_size() : 0;
    layout.value[s] = part.take(image(step.out_channels, step.out_height, step.out_width, step.border) * chunk_size);
    layout.kept[s] = part.take(kept * chunk_size);
    layout.packed[s] = part.take(weights);
    layout.packed_back[s] = part.take(training && step.from >= 0 ? weights : 0);
  }
  for (int l = 0; l < network.num_linears; l++) {
    const Linear& layer = network.linears[l];
    layout.linear_out[l] = part.take(index(layer.outputs) * chunk_size);
    features = std::max<index>({features, layer.inputs, layer.outputs});
    inputs = std::max<index>(inputs, layer.inputs);
  }
  layout.part_size = part.size;

  Offsets all;
  layout.input = all.take(image(network.channels, network.height, network.width, network.border) * chunk_size);
  layout.staging = all.take(staging ? network.pixels() * lanes : 0);
  layout.logits = all.take(index(network.classes()) * chunk_size);
  layout.part_begin = all.take(layout.part_size * num_parts);
  layout.segment_logits = all.take(segment_logits);
  if (training) {
    index patches = 0, patch_list = 0, sums = 0;
    for (int s = 0; s < network.num_steps; s++) {
      const Step& step = network.steps[s];
      layout.value_gradient[s] = all.take(image(step.out_channels, step.out_height, step.out_width, step.gradient_border) * lanes);
      if (step.kind == Kind::convolution) sums = std::max(sums, held_size(step, lanes));
      if (step.kind != Kind::block) continue;
      patches = std::max(patches, (step.in_size() + 2 * lanes) * lanes);
      patch_list = std::max(patch_list, (step.out_size() + 2 * lanes) * lanes);
      layout.patch_sums[s] = all.take(index(step.out_channels) * step.kernel * (step.kernel * step.in_channels + lanes));
      if (step.from < 0) continue;
      layout.dense_gradient[s] = all.take(image(step.out_channels, 2 * step.out_height, 2 * step.out_width, 1) * lanes);
    }
    layout.weight_sums = all.take(sums);
    layout.patch_images = all.take(patches);
    layout.patch_values = all.take(patch_list);
    layout.patch_offsets = all.take(patch_list);
    for (index& offset : layout.feature_gradient) offset = all.take(features * chunk_size);
    layout.transposed = all.take((inputs + lanes) * chunk_size);
    layout.gradient = all.take(network.num_parameters * num_parts);
    layout.velocity = all.take(network.num_parameters * num_parts);
  }
  layout.size = all.size;
  return layout;
}

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};
using Workspace = std::unique_ptr<float, Free>;

Workspace make_workspace(const Layout& layout) {
  const std::size_t size = std::size_t(layout.size) * sizeof(float);
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, size) != 0) throw std::bad_alloc();  // macOS has aligned_alloc only in later versions
  Workspace workspace(static_cast<float*>(memory));
  std::memset(workspace.get(), 0, size);
  return workspace;
}

// Run work(item, workspace) for every item, in the order given, on up to `num_threads` threads, one workspace each.
template <class Function>
void run(const std::vector<index>& items, int num_threads, const Layout& layout, const Function& work) {
  const index limit = std::max<index>(1, std::min<index>(num_threads, index(items.size())));
  std::vector<Workspace> workspaces;
  for (index i = 0; i < limit; i++) workspaces.push_back(make_workspace(layout));
  std::atomic<std::size_t> next{0};
  const auto loop = [&](float* workspace) {
    for (std::size_t i; (i = next.fetch_add(1)) < items.size();) work(items[i], workspace);
  };
  std::vector<std::thread> threads;
  try {
    for (index i = 1; i < limit; i++) threads.emplace_back(loop, workspaces[std::size_t(i)].get());
  } catch (const std::system_error&) {
    // No more threads to be had: those that started, and this one, do all the work.
  }
  loop(workspaces[0].get());
  for (std::thread& thread : threads) thread.join();
}

void train(const fedbac_train_call& call, const InstructionSet& set, const Network& network) {
  const bool staging = call.crop || call.flip;
  const Layout layout = make_layout(network, set.lanes, call.num_parts, true, staging, 0);
  std::vector<index> jobs(static_cast<std::size_t>(call.num_jobs));
  std::iota(jobs.begin(), jobs.end(), index(0));
  // The largest first, so that no thread is left with a long one at the end.
  std::stable_sort(jobs.begin(), jobs.end(), [&](index a, index b) {
    return call.num_examples[a] * call.num_epochs[a] > call.num_examples[b] * call.num_epochs[b];
  });
  run(jobs, call.num_threads, layout, [&](index job, float* workspace) { set.train(call, network, layout, workspace, job); });
}

// A group's models, as rows of a table of the distinct networks they are made of.
struct Group {
  std::vector<index> pairs;
  std::vector<std::int64_t> networks;
  std::vector<std::int32_t> slots;
};

void evaluate(const fedbac_evaluate_call& call, const InstructionSet& set, const Network& network) {
  std::vector<Group> groups(static_cast<std::size_t>(call.num_groups));
  for (index pair = 0; pair < call.num_pairs; pair++) groups[std::size_t(call.pair_group[pair])].pairs.push_back(pair);
  std::size_t most_networks = 0;
  for (Group& group : groups) {
    std::map<std::int64_t, std::int32_t> slot_of;
    for (const index pair : group.pairs) {
      for (int p = 0; p < call.num_parts; p++) {
        const std::int64_t row = call.models[call.pair_model[pair] * call.num_parts + p];
        const auto [found, is_new] = slot_of.try_emplace(row, std::int32_t(group.networks.size()));
        if (is_new) group.networks.push_back(row);
        group.slots.push_back(found->second);
      }
    }
    most_networks = std::max(most_networks, group.networks.size());
  }

  // Large groups are cut into segments, independently of the number of threads so that the sums are too.
  constexpr index logits_limit = index(1) << 22;
  index length = 8 * chunk_size;
  const index per_example = index(most_networks) * network.classes();
  while (length > chunk_size && length * per_example > logits_limit) length /= 2;
  std::vector<Segment> segments;
  std::vector<index> segment_group, order;
  index results = 0;
  for (std::size_t g = 0; g < groups.size(); g++) {
    const index count = call.group_begin[g + 1] - call.group_begin[g];
    if (groups[g].pairs.empty()) continue;
    for (index begin = 0; begin < count; begin += length) {
      segments.push_back({call.examples + call.group_begin[g] + begin, int(std::min(length, count - begin)),
                          groups[g].networks.data(), int(groups[g].networks.size()), groups[g].slots.data(),
                          int(groups[g].pairs.size()), nullptr, nullptr});
      segment_group.push_back(index(g));
      order.push_back(index(order.size()));
      results += index(groups[g].pairs.size());
    }
  }
  std::vector<double> loss(static_cast<std::size_t>(results));
  std::vector<std::int64_t> correct(static_cast<std::size_t>(results));
  index offset = 0;
  for (Segment& segment : segments) {
    segment.loss = loss.data() + offset;
    segment.correct = correct.data() + offset;
    offset += segment.num_pairs;
  }
  std::stable_sort(order.begin(), order.end(), [&](index a, index b) {
    const Segment &first = segments[std::size_t(a)], &second = segments[std::size_t(b)];
    return index(first.count) * first.num_networks > index(second.count) * second.num_networks;
  });
  const Layout layout = make_layout(network, set.lanes, 1, false, false, length * per_example);
  run(order, call.num_threads, layout, [&](index at, float* workspace) {
    set.evaluate(call, network, layout, workspace, segments[std::size_t(at)]);
  });
  std::fill_n(call.loss, call.num_pairs, 0.0);
  std::fill_n(call.correct, call.num_pairs, 0);
  for (std::size_t s = 0; s < segments.size(); s++) {
    const std::vector<index>& pairs = groups[std::size_t(segment_group[s])].pairs;
    for (std::size_t i = 0; i < pairs.size(); i++) {
      call.loss[pairs[i]] += segments[s].loss[i];
      call.correct[pairs[i]] += segments[s].correct[i];
    }
  }
}

// No exception may cross the C interface.
template <class Call>
int enter(const Call& call, void (*work)(const Call&, const InstructionSet&, const Network&)) {
  Network network;
  if (!describe(call.shape, network) || call.num_parts < 1 || call.num_parts > max_parts) return bad_shape;
  if (!supported(call.instruction_set)) return no_instruction_set;
  try {
    work(call, instruction_sets[call.instruction_set], network);
    return stopped(call.stop) ? ended_early : ok;
  } catch (const std::bad_alloc&) {
    return out_of_memory;
  }
}

}  // namespace
}  // namespace fedbac

#define FEDBAC_EXPORT extern "C" __attribute__((visibility("default")))

// What the calls are laid out like. Who was written for another layout must not call: the kernel would read astray.
// The first digit counts the ways in which shapes have been written.
FEDBAC_EXPORT std::int64_t fedbac_layout() {
  return std::int64_t{2000000000000} + std::int64_t{1000000} * sizeof(fedbac::fedbac_train_call) +
         sizeof(fedbac::fedbac_evaluate_call);
}

// The name of an instruction set that was compiled in, best first, or null past the last one.
FEDBAC_EXPORT const char* fedbac_instruction_set(std::int32_t set) {
  return set >= 0 && set < fedbac::num_instruction_sets ? fedbac::instruction_sets[set].name : nullptr;
}

FEDBAC_EXPORT std::int32_t fedbac_supported(std::int32_t set) { return fedbac::supported(set); }

// The number of parameters of a network, or -1 when there is no such network.
FEDBAC_EXPORT std::int64_t fedbac_num_parameters(const std::int32_t* shape) {
  fedbac::Network network;
  return fedbac::describe(shape, network) ? network.num_parameters : -1;
}

FEDBAC_EXPORT std::int32_t fedbac_train(const fedbac::fedbac_train_call* call) {
  return fedbac::enter(*call, fedbac::train);
}

FEDBAC_EXPORT std::int32_t fedbac_evaluate(const fedbac::fedbac_evaluate_call* call) {
  return fedbac::enter(*call, fedbac::evaluate);
}

// Starts GPU kernels one after another by the driver's function, whose result is 0 or an error: a call from Python for
// each takes longer than the driver itself. A row has the kernel, the blocks in three directions, threads, bytes of
// shared memory, the stream, the addresses of the arguments, where the step is written, and the step.
FEDBAC_EXPORT std::int32_t fedbac_launch(void* start, const std::int64_t* rows, std::int64_t count) {
  using Start = std::int32_t (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  for (const std::int64_t* row = rows; row < rows + 10 * count; row += 10) {
    *reinterpret_cast<std::int32_t*>(row[8]) = static_cast<std::int32_t>(row[9]);
    std::int32_t failed = reinterpret_cast<Start>(start)(
        reinterpret_cast<void*>(row[0]), row[1], row[2], row[3], row[4], 1, 1, row[5], reinterpret_cast<void*>(row[6]),
        reinterpret_cast<void**>(row[7]), nullptr);
    if (failed) return failed;
  }
  return 0;
}
