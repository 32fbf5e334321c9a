from qpsbgd.binarization.layer_report import LayerLoss, Report


def test_the_table_shows_losses_in_percent_and_a_dash_for_what_was_not_asked_for():
    report = Report((LayerLoss("first", (3, 4), 2, rounding=0.125, search=0.0625, seconds=1.5),), {})
    assert str(report).splitlines()[-1].split() == ["first", "3", "×", "4", "2", "12.50", "%", "–", "6.25", "%", "1.50"]
