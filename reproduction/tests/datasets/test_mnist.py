import numpy as np
import torch

from qpsbgd_paper.datasets.mnist import load_mnist


def test_both_parts_are_loaded(small_mnist):
    folder, images, labels = small_mnist
    mnist = load_mnist(data=folder)
    assert mnist.train_images.dtype == torch.uint8 and np.array_equal(mnist.train_images, images)
    assert mnist.train_labels.dtype == torch.long and np.array_equal(mnist.train_labels, labels)
    assert len(mnist.test_images) == len(mnist.test_labels) == 10


def test_the_published_images_have_the_known_mean_and_deviation(real_data):
    mnist = load_mnist(data=real_data)
    assert mnist.train_images.shape == (60000, 28, 28) and mnist.test_images.shape == (10000, 28, 28)
    deviation, mean = torch.std_mean(mnist.train_images.float() / 255)
    assert round(float(mean), 4) == 0.1307 and round(float(deviation), 4) == 0.3081
    assert mnist.train_labels[:5].tolist() == [5, 0, 4, 1, 9] and mnist.test_labels[:3].tolist() == [7, 2, 1]
