// The benchmarks' command lines. CLI11 behind a few functions, so that its templates are compiled once for all programs.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace bench {

class CommandLine {
 public:
  explicit CommandLine(const std::string& purpose);
  ~CommandLine();

  // Each variable holds its default; numbers must be positive.
  void number(const char* name, int& value, const char* help);
  void number(const char* name, double& value, const char* help);
  void text(const char* name, std::string& value, const char* help, const std::vector<std::string>& choices = {});
  void flag(const char* name, bool& value, const char* help);

  // Ends the program after --help or a mistake.
  void parse(int argument_count, char** arguments);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace bench
