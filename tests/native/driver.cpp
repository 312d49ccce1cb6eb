// Runs the case in case.hpp, which a test writes, on every instruction set and prints what comes out, one line per set.

#include "kernel.cpp"

#include <cstdio>

#include "case.hpp"

namespace {

template <class Values>
void print(const Values& values) {
  for (const auto value : values) std::printf(" %.9g", double(value));
}

}  // namespace

int main() {
  const fedbac::fedbac_images images{pixels, 0, scale, shift, labels};
  for (std::int32_t set = 0; const char* name = fedbac_instruction_set(set); set++) {
    if (!fedbac_supported(set)) continue;
    const std::size_t jobs = std::size(num_epochs), parts = std::size(l2);
    std::vector<float> trained(jobs * parts * std::size_t(fedbac_num_parameters(shape))), velocity(trained.size());
    std::vector<double> loss(jobs), square(jobs), epoch_loss(jobs * max_epochs);
    std::vector<std::uint8_t> finite(jobs);
    fedbac::fedbac_train_call train{};
    train.shape = shape, train.num_parts = int(parts), train.num_threads = 2, train.instruction_set = set;
    train.images = images, train.num_jobs = int(jobs), train.networks = networks, train.start = start;
    train.schedule = examples, train.schedule_begin = begin, train.num_examples = num_examples;
    train.num_epochs = num_epochs, train.batch_size = batch_size, train.crop = crop, train.flip = flip;
    train.learning_rate = learning_rate, train.momentum = momentum, train.weight_decay = weight_decay, train.l2 = l2;
    train.anchors = networks, train.anchor = anchor, train.moving_begin = moving_begin, train.moving_end = moving_end;
    train.max_norm = max_norm, train.velocity_out = velocity.data(), train.trained = trained.data();
    train.loss = loss.data(), train.square = square.data(), train.epoch_loss = epoch_loss.data();
    train.max_epochs = max_epochs, train.finite = finite.data();

    std::vector<double> measured(std::size(pair_model));
    std::vector<std::int64_t> correct(measured.size());
    fedbac::fedbac_evaluate_call evaluate{};
    evaluate.shape = shape, evaluate.num_parts = int(parts), evaluate.num_threads = 2, evaluate.instruction_set = set;
    evaluate.images = images, evaluate.networks = networks, evaluate.models = start;
    evaluate.num_groups = int(std::size(group_begin)) - 1, evaluate.examples = examples;
    evaluate.group_begin = group_begin, evaluate.num_pairs = int(measured.size()), evaluate.pair_model = pair_model;
    evaluate.pair_group = pair_group, evaluate.loss = measured.data(), evaluate.correct = correct.data();

    if (fedbac_train(&train) || fedbac_evaluate(&evaluate)) return 1;
    std::printf("%s", name);
    print(trained), print(velocity), print(loss), print(square), print(finite), print(measured), print(correct);
    std::printf("\n");
  }
}
