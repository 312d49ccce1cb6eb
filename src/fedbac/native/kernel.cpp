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

bool describe(const std::int32_t* shape, Network& network) {
  network = Network{};
  network.channels = *shape++;
  network.height = *shape++;
  network.width = *shape++;
  network.num_convolutions = *shape++;
  network.num_linears = *shape++;
  if (network.channels < 1 || network.height < 1 || network.width < 1 || network.num_convolutions < 0 ||
      network.num_convolutions > max_layers || network.num_linears < 1 || network.num_linears > max_layers)
    return false;
  index offset = 0;
  int channels = network.channels, height = network.height, width = network.width;
  for (int l = 0; l < network.num_convolutions; l++) {
    Convolution& layer = network.convolutions[l];
    layer.in_channels = channels, layer.in_height = height, layer.in_width = width;
    layer.out_channels = channels = *shape++;
    layer.kernel = *shape++;
    if (layer.kernel < 1 || channels < 1) return false;
    layer.out_height = height = (height - layer.kernel + 1) / 2;
    layer.out_width = width = (width - layer.kernel + 1) / 2;
    if (height < 1 || width < 1) return false;
    layer.weight = offset;
    layer.bias = offset += channels * layer.in_channels * layer.taps();
    offset += channels;
  }
  int features = channels * height * width;
  for (int l = 0; l < network.num_linears; l++) {
    Linear& layer = network.linears[l];
    layer.inputs = features;
    layer.outputs = features = *shape++;
    if (features < 1) return false;
    layer.weight = offset;
    layer.bias = offset += index(layer.inputs) * layer.outputs;
    offset += layer.outputs;
  }
  network.num_parameters = offset;
  return true;
}

// Gives out offsets that start on a cache line.
struct Offsets {
  index size = 0;
  index take(index floats) { return std::exchange(size, size + (floats + 15) / 16 * 16); }
};

Layout make_layout(const Network& network, int lanes, int num_parts, bool training, bool staging, index segment_logits) {
  Layout layout{};
  Offsets part;
  index features = 0, inputs = 0;
  for (int l = 0; l < network.num_convolutions; l++) {
    const Convolution& layer = network.convolutions[l];
    layout.conv_out[l] = part.take(layer.out_size() * chunk_size);
    layout.winner[l] = part.take(training ? layer.out_size() * chunk_size : 0);
    layout.packed[l] = part.take(layer.out_channels * layer.in_channels * layer.taps());
    layout.packed_transposed[l] = part.take(training && l > 0 ? layer.out_channels * layer.in_channels * layer.taps() : 0);
  }
  for (int l = 0; l < network.num_linears; l++) {
    const Linear& layer = network.linears[l];
    layout.linear_out[l] = part.take(index(layer.outputs) * chunk_size);
    features = std::max<index>({features, layer.inputs, layer.outputs});
    inputs = std::max<index>(inputs, layer.inputs);
  }
  layout.part_size = part.size;

  Offsets all;
  layout.input = all.take(network.pixels() * chunk_size);
  layout.staging = all.take(staging ? network.pixels() * lanes : 0);
  layout.logits = all.take(index(network.classes()) * chunk_size);
  layout.part_begin = all.take(layout.part_size * num_parts);
  layout.segment_logits = all.take(segment_logits);
  if (training) {
    index image = 0, patches = 0, patch_list = 0;
    for (int l = 0; l < network.num_convolutions; l++) {
      const Convolution& layer = network.convolutions[l];
      patches = std::max(patches, (layer.in_size() + 2 * lanes) * lanes);
      patch_list = std::max(patch_list, (layer.out_size() + 2 * lanes) * lanes);
      layout.patch_sums[l] =
          all.take(index(layer.out_channels) * layer.kernel * (layer.kernel * layer.in_channels + lanes));
      if (l == 0) continue;
      image = std::max(image, index(layer.in_channels) * (layer.in_height + 1) * (layer.in_width + 1) * lanes);
      layout.dense_gradient[l] =
          all.take(index(layer.out_channels) * (2 * layer.out_height + 2) * (2 * layer.out_width + 2) * lanes);
    }
    layout.patch_images = all.take(patches);
    layout.patch_values = all.take(patch_list);
    layout.patch_offsets = all.take(patch_list);
    for (index& offset : layout.image_gradient) offset = all.take(image);
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
FEDBAC_EXPORT std::int64_t fedbac_layout() {
  return std::int64_t{1000000} * sizeof(fedbac::fedbac_train_call) + sizeof(fedbac::fedbac_evaluate_call);
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
