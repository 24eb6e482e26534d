"""Models in local training: gradients reach every layer, averaging learns, and nothing passes from client to client."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientUpdate, TrainRequest
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.models.flat import new_model
from fedscout.engine.seeds import stream
from fedscout.engine.training.backends import LoopTrainer
from fedscout.engine.training.loop import RowsWork
from fedscout.experiments.models.table import build_model
from tests.experiments.models.requests import SMALL, VOCABULARY, learnable_federation

TRAINING = LocalTraining(local_epochs=2, batch_size=8, optimizer="adam", learning_rate=0.003)


@pytest.mark.parametrize("name", SMALL)
def test_the_gradient_reaches_every_parameter(name: str) -> None:
    asked = SMALL[name]
    federation = learnable_federation(asked)
    model = new_model(build_model(asked), seed=3)
    model.module.train()

    outputs = model.outputs(torch.from_numpy(federation.features))
    torch.nn.functional.cross_entropy(outputs, torch.from_numpy(federation.labels)).backward()

    without = [name for name, parameter in model.module.named_parameters() if not parameter.grad.abs().sum() > 0]
    assert without == []


@pytest.mark.parametrize(
    "name", [name for name in SMALL if not name.startswith("resnet18 ")] + ["resnet18 with batch norm"]
)
def test_a_client_s_result_does_not_depend_on_who_was_trained_before(name: str) -> None:
    """Statistics, counters, states of layers and random numbers: all start anew with each client."""
    federation = learnable_federation(SMALL[name])
    received = torch.from_numpy(ClientHost(federation, {}).initial_vector(0))

    alone = trained(federation, received, [1])[0]
    after_another = trained(federation, received, [0, 1])[1]

    np.testing.assert_array_equal(alone.vector, after_another.vector)
    assert alone.loss == after_another.loss
    assert np.any(alone.vector != received.numpy())


def trained(federation: Federation, received: torch.Tensor, clients: list[int]) -> list[ClientUpdate]:
    trainer = LoopTrainer(new_model(federation.model, seed=5))
    works = [
        RowsWork(client, stream(0, "batches", client), {}, federation.client_data(client).own) for client in clients
    ]
    with torch.random.fork_rng(devices=[]):
        answers = trainer.train(TrainRequest(received, TRAINING, initial_loss=True), works)
        updates = [update for block in answers for _, update in block]
    for update in updates:
        assert isinstance(update, ClientUpdate), update
    return updates


def test_padding_stays_zero_and_is_not_read() -> None:
    """A text's output does not change with the padding behind it, and the vector of padding is not trained."""
    for name in ("embedding_bag", "textcnn", "char_lstm"):
        federation = learnable_federation(SMALL[name])
        received = torch.from_numpy(ClientHost(federation, {}).initial_vector(0))
        model = new_model(federation.model, seed=0)
        model.load(torch.from_numpy(trained(federation, received, [0])[0].vector))
        model.module.eval()
        (vectors,) = [part for part in model.module.modules() if isinstance(part, torch.nn.Embedding)]
        assert torch.all(vectors.weight[0] == 0)
        assert torch.all(vectors.weight[1:].abs().sum(dim=1) > 0)

        text = torch.tensor([[3.0, 1.0, 4.0, 1.0, 5.0]])
        padded = torch.cat([text, torch.zeros(1, 6)], dim=1)
        torch.testing.assert_close(model.module(text), model.module(padded))
        other = torch.cat([text, torch.full((1, 6), VOCABULARY - 1.0)], dim=1)
        assert not torch.allclose(model.module(text), model.module(other))
        assert torch.isfinite(model.module(torch.zeros(2, 6))).all()


def test_the_embedding_bag_adds_up_vectors_in_any_order() -> None:
    """Logits are A Σ v / √k + b over the k words of a text."""
    module = build_model(SMALL["embedding_bag"])()
    words = [3, 1, 4, 1]
    total = sum(module.embedding.weight[word] for word in words)
    expected = module.last.weight @ total / 2 + module.last.bias
    for order in (words, words[::-1]):
        torch.testing.assert_close(module(torch.tensor([[*map(float, order), 0.0]])), expected[None])


def test_textcnn_finds_a_word_wherever_it_is() -> None:
    """The maximum over time: shifting a text within zeros changes nothing (Kim 2014, eq. 3)."""
    module = build_model(SMALL["textcnn"])().eval()
    early, late = torch.zeros(1, 12), torch.zeros(1, 12)
    early[0, 1:4] = late[0, 7:10] = torch.tensor([5.0, 6.0, 7.0])
    torch.testing.assert_close(module(early), module(late))


def test_a_block_of_the_residual_net_adds_what_came_in() -> None:
    """He et al. 2016, eq. 1: y = ReLU(F(x) + x), so with F = 0 non-negative images pass unchanged."""
    from fedscout.experiments.models.networks import ResidualBlock

    block = ResidualBlock(32, 32, stride=1, batch_norm=False)
    last_norm = block.residual[-1]
    torch.nn.init.zeros_(last_norm.weight)
    images = torch.rand(2, 32, 4, 4)
    assert torch.equal(block(images), images)


def test_the_residual_net_halves_three_times() -> None:
    from fedscout.experiments.models.networks import ResidualNet

    with torch.device("meta"):
        net = ResidualNet(3, 10, (64, 128, 256, 512), batch_norm=False)
        assert net.blocks(net.stem(torch.zeros(2, 3, 32, 32))).shape == (2, 512, 4, 4)
